"""A Ray cluster of three nodes on this machine: a head without cores and two workers.

A program of its own, so that nothing of Ray lives in the tests' process. It prints the address,
kills a worker node at the line `lose`, and ends everything when its input ends.
"""

import os
import sys

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback only
    "RAY_AUTH_MODE": "disabled",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
}

from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}


def main() -> None:
    cluster = Cluster()
    try:
        head = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
        cluster.add_node(num_cpus=0, **head, **SMALL)
        workers = [cluster.add_node(num_cpus=1, **SMALL) for _ in range(2)]
        print(cluster.address, flush=True)
        for line in sys.stdin:
            if line.strip() == "lose":
                cluster.remove_node(workers.pop(), allow_graceful=False)
                print("lost", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
