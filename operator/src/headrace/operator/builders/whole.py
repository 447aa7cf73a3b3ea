"""All objects of a cluster that can be made without looking at anything but its spec, in the order
in which they are needed. The StatefulSet and the secret have their own builders: they depend on
what there is."""

from __future__ import annotations

from headrace.operator.builders import access, config, disruption, network, services
from headrace.operator.spec import BrokerClusterSpec, JsonObject, Owner

BUILDERS = (
    access.service_account,
    access.role,
    access.role_binding,
    config.config_map,
    services.headless,
    services.client,
    network.network_policy,
    disruption.disruption_budget,
)


def plain_objects(owner: Owner, spec: BrokerClusterSpec) -> list[JsonObject]:
    """What the spec alone decides."""
    return [build(owner, spec) for build in BUILDERS]
