"""The programs that the named parts of a run use, for cluster.sh build.

    programs.py [NAME,…]     without a name: of all that a run without --only does"""

import sys

CLUSTER = ("etcd", "control", "node")
USED = {"alerts": ("rules",), "ruler": ("loki",), "manifests": (*CLUSTER, "helm"), "helm": (*CLUSTER, "helm"), "logs": (*CLUSTER, "loki", "collector")}
WHOLE = (*CLUSTER, "helm", "rules", "loki", "collector")


def programs(names):
    used = {program for name in names for program in USED.get(name, CLUSTER)} if names else set(WHOLE)
    return [program for program in WHOLE if program in used]


if __name__ == "__main__":
    print(*programs([name for name in sys.argv[1].split(",") if name]))
