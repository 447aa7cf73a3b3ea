"""The demo: a year of real flights through three real brokers, one of which is killed on the way.

`flights` reads the data set, `checks` compares what came back with what was sent (pure), `run`
does the sending, killing and reading against a cluster that the command line starts; `group_part`
has a group handle it all while a member and a broker are killed, `spark_part` has Spark compute.
"""
