"""The alerts: what is watched, when it is wrong, and what to do then. Each is a part of the page
docs/alerts.md."""

from __future__ import annotations

from observability.alert import Alert

_POD = ("namespace", "cluster", "pod")

BROKERS = (
    Alert(
        name="HeadraceLeaderlessPartitions", severity="critical",
        metric="headrace_leaderless_partitions", combine="max", compare=">", bound=0, for_minutes=1,
        summary="{{ $value }} partition(s) of {{ $labels.cluster }} have no leader",
        meaning="They can be neither written nor read.",
        todo="`headrace topic list --offline` names them, `headrace topic describe TOPIC` says why nobody leads. Bring back the broker that"
        " has all records. If it is gone for good, docs/operating.md, \"Nobody can lead a partition\", says what may be lost and how to go on.",
    ),
    Alert(
        name="HeadraceUnderMinIsr", severity="critical",
        metric="headrace_under_min_isr_partitions", compare=">", bound=0, for_minutes=2,
        summary="{{ $value }} partition(s) of {{ $labels.cluster }} have fewer in-sync replicas than min.insync.replicas",
        meaning="Producers with acks=all are refused; what was acknowledged is safe.",
        todo="`headrace topic list --under-min-isr` names them. Look which brokers are missing (`headrace cluster describe`) and why:"
        " Pending pods, full disks, a node that is gone.",
    ),
    Alert(
        name="HeadraceUnderReplicated", severity="warning",
        metric="headrace_under_replicated_partitions", compare=">", bound=0, for_minutes=15,
        summary="{{ $value }} partition(s) of {{ $labels.cluster }} have fewer in-sync replicas than they shall have",
        meaning="One more loss may stop writes.",
        todo="`headrace topic list --under-replicated` names them. A broker that is away, or one that can't keep up: compare"
        " `headrace_replica_lag_records_max`, and the log of the followers.",
    ),
    Alert(
        name="HeadraceOfflineReplicas", severity="warning",
        metric="headrace_offline_partitions", by=_POD, compare=">", bound=0, for_minutes=5,
        summary="{{ $value }} log(s) on {{ $labels.pod }} can't be used",
        meaning="These replicas are lost until somebody acts.",
        todo="The broker's log names the files and what is wrong with them. If the disk is sound, the replica is copied anew by itself; if it"
        " isn't, replace the volume (annotation `headrace.dev/delete-pod-and-pvc` on the pod).",
    ),
    Alert(
        name="HeadraceController", severity="critical",
        metric="headrace_is_controller", compare="!=", bound=1, for_minutes=2,
        summary="{{ $labels.cluster }} has {{ $value }} controllers instead of one",
        meaning="Without one nobody elects leaders; of two, one is about to notice that it isn't any more.",
        todo="None: can brokers reach the store (the Kubernetes API)? Their logs say. Has the store gone back in time"
        " (`headrace_store_went_back`)? Several, for more than a moment: brokers of two clusters under one name.",
    ),
    Alert(
        name="HeadraceIsolated", severity="critical",
        metric="headrace_isolated_partitions", by=_POD, compare=">", bound=0, for_minutes=2,
        summary="{{ $labels.pod }} leads {{ $value }} partition(s) and reaches neither followers nor the store",
        meaning="It refuses writes, since others may lead by now.",
        todo="The network of this pod or its node. Others take over by themselves once its lease is over.",
    ),
    Alert(
        name="HeadraceDiskFillsUp", severity="warning",
        metric="headrace_disk_free_bytes", combine="max", by=_POD, compare="<", bound="2 * headrace_disk_reserve_bytes", for_minutes=5,
        summary="{{ $labels.pod }} has {{ $value | humanize1024 }}B left on its data volume",
        meaning="Writes are refused once only the reserve is left.",
        todo="Grow the volume (`spec.storage.size`), shorten retention of the largest topics (`headrace topic list`), or add brokers.",
    ),
    Alert(
        name="HeadraceStorageFull", severity="critical",
        metric="headrace_storage_full", combine="max", by=_POD, compare=">", bound=0, for_minutes=1,
        summary="{{ $labels.pod }} refuses writes: its disk is down to the reserve",
        meaning="Producers get StorageFull; reading, retention and compaction go on.",
        todo="Grow the volume (`spec.storage.size`), or shorten retention: `headrace topic alter TOPIC --config retention.bytes=...` frees"
        " space within half a minute.",
    ),
    Alert(
        name="HeadraceStoreWentBack", severity="critical",
        metric="headrace_store_went_back", combine="max", compare=">", bound=0, for_minutes=1,
        summary="the state of {{ $labels.cluster }} in the Kubernetes API is older than what its brokers have seen",
        meaning="Nobody is elected until it is put right; leaders go on.",
        todo="A backup of etcd or of the namespace was put back. `headrace cluster recover --from-disks` shows what would be written from the"
        " brokers' copies; docs/operating.md explains it.",
    ),
    Alert(
        name="HeadraceSuspectPartitions", severity="critical",
        metric="headrace_suspect_partitions", combine="max", compare=">", bound=0, for_minutes=1,
        summary="{{ $value }} partition(s) of {{ $labels.cluster }} contradict what brokers have on disk",
        meaning="They keep their leaders, but nobody new is elected for them.",
        todo="Somebody edited or deleted state by hand, or put back a backup. `headrace cluster recover --from-disks`.",
    ),
    Alert(
        name="HeadraceTruncationRefused", severity="critical",
        metric="headrace_replica_truncations_refused_total", over="increase", window="1h", by=_POD,
        compare=">", bound=0, for_minutes=0,
        summary="{{ $labels.pod }} was asked to cut committed records, and didn't",
        meaning="The leader's log and this one contradict each other: one of them lost records that were acknowledged.",
        todo="Don't delete anything. The broker's log names the partition and both ends; compare the logs of all replicas before you decide"
        " which one is right.",
    ),
    Alert(
        name="HeadraceReplicasReplaced", severity="warning",
        metric="headrace_replicas_replaced_total", over="increase", window="1h", by=_POD,
        compare=">", bound=0, for_minutes=0,
        summary="{{ $labels.pod }} set broken logs aside and copied them anew",
        meaning="Nothing is lost, but disks don't break logs for fun.",
        todo="Look at the volume and its node (`dmesg`, the storage's own alerts) before it happens to two replicas at once.",
    ),
    Alert(
        name="HeadraceBrokerRestarts", severity="warning",
        metric="process_start_time_seconds", where={"cluster": ".+"}, over="changes", window="30m", by=_POD,
        compare=">", bound=2, for_minutes=0,
        summary="{{ $labels.pod }} started {{ $value }} times within half an hour",
        meaning="Each start moves leaders and makes clients try again.",
        todo="`kubectl describe pod` says whether it ran out of memory or a probe failed; `kubectl logs --previous` has its last words.",
    ),
    Alert(
        name="HeadraceBackgroundFailures", severity="warning",
        metric="headrace_background_failures_total", over="increase", window="15m",
        by=("namespace", "cluster", "pod", "task"), compare=">", bound=5, for_minutes=0,
        summary="{{ $labels.task }} keeps failing on {{ $labels.pod }}",
        meaning="Background work is tried again and again without success.",
        todo="The broker's log has each failure with its cause.",
    ),
    Alert(
        name="HeadraceCompactionFails", severity="warning",
        metric="headrace_compaction_failures_total", over="increase", window="1h", by=_POD,
        compare=">", bound=2, for_minutes=0,
        summary="compaction fails on {{ $labels.pod }}",
        meaning="Compacted topics grow without end.",
        todo="The broker's log says which partition and why: mostly too little disk for the new segment, or too little memory"
        " (docs/compaction.md).",
    ),
    Alert(
        name="HeadraceLoopStalls", severity="warning",
        metric="headrace_loop_stall_max_seconds", combine="max", by=_POD, compare=">", bound=1, for_minutes=5,
        summary="{{ $labels.pod }} was unable to answer for {{ $value }} s",
        meaning="Everybody who talks to this broker waits; it may be taken for dead.",
        todo="Too little CPU (limits throttle: `container_cpu_cfs_throttled_seconds_total`), a node that swaps, a frozen machine.",
    ),
    Alert(
        name="HeadraceServerErrors", severity="warning",
        metric="headrace_requests_total", where={"status": "5.."}, over="rate", window="5m", by=_POD,
        compare=">", bound=1, for_minutes=5,
        summary="{{ $labels.pod }} answers {{ $value }} requests a second with an error of its own",
        meaning="Clients try again; if it lasts, they give up.",
        todo="`headrace_produce_rejected_total` by code and the broker's log say what fails; docs/errors.md explains the codes.",
    ),
    Alert(
        name="HeadraceConnectionsRefused", severity="warning",
        metric="headrace_connections_refused_total", over="rate", window="5m", by=_POD,
        compare=">", bound=0, for_minutes=5,
        summary="{{ $labels.pod }} is at its bound of connections",
        meaning="Some clients don't get in.",
        todo="Too many programs, or one that leaks connections: `connections.max` (docs/configuration.md), or more brokers.",
    ),
    Alert(
        name="HeadraceGroupLag", severity="warning",
        metric="headrace_group_lag_records", combine="sum", by=("namespace", "cluster", "group"),
        compare=">", bound=100_000, for_minutes=10,
        summary="group {{ $labels.group }} of {{ $labels.cluster }} is {{ $value }} records behind",
        meaning="What it works on is old.",
        todo="`headrace group describe GROUP` shows which partitions and members. More members, up to the number of partitions, or a handler"
        " that hangs. A bound for each group: `spec.maxLag` of ConsumerGroup.",
    ),
)  # fmt: skip

OPERATOR = (
    Alert(
        name="HeadraceOperatorDown", severity="critical",
        metric="headrace_operator_leads", by=("namespace",), compare="<", bound=1, for_minutes=5,
        summary="no Headrace operator works in {{ $labels.namespace }}",
        meaning="Brokers go on; nothing that is applied, scaled or broken is looked after.",
        todo="`kubectl get pods` of the operator and their logs: rights, the Lease, the API server.",
    ),
    Alert(
        name="HeadraceResourceNotReady", severity="warning",
        metric="headrace_operator_resources", where={"state": "not_ready"}, by=("namespace", "kind"),
        compare=">", bound=0, for_minutes=15,
        summary="{{ $value }} {{ $labels.kind }} resource(s) are not ready",
        meaning="Something that was applied isn't so.",
        todo="`kubectl get headrace -A` shows which; the message of the Ready condition says what to do.",
    ),
    Alert(
        name="HeadraceOperatorFails", severity="warning",
        metric="headrace_operator_failures_total", over="increase", window="15m", by=("namespace", "kind", "error"),
        compare=">", bound=5, for_minutes=0,
        summary="passes over {{ $labels.kind }} fail with {{ $labels.error }}",
        meaning="What was applied isn't carried out.",
        todo="The operator's log names resource and cause.",
    ),
    Alert(
        name="HeadraceReconcileHangs", severity="warning",
        metric="headrace_operator_reconciliation_start_time_seconds", combine="max", age=True, by=("namespace", "kind", "name"),
        compare=">", bound=600, for_minutes=0,
        summary="a pass over {{ $labels.kind }} {{ $labels.name }} has been running for {{ $value | humanizeDuration }}",
        meaning="This resource isn't looked after meanwhile.",
        todo="The operator's log says what it waits for; every call has a deadline, so this should not be. Delete the operator's pod, and tell us.",
    ),
)  # fmt: skip

ALERTS = (*BROKERS, *OPERATOR)
"""All of them."""


def rules() -> dict[str, object]:
    """The groups of a PrometheusRule's spec."""
    return {
        "groups": [
            {"name": "headrace-brokers", "rules": [alert.rule for alert in BROKERS]},
            {"name": "headrace-operator", "rules": [alert.rule for alert in OPERATOR]},
        ]
    }
