"""``open_engine`` as the server calls it, each time in its own process: what is bound, said and refused."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

import pytest

from sglang_pd_fabric.fabric.availability import Machine

WITHOUT_NIC = pytest.mark.skipif(bool(Machine.read().devices), reason="this machine has an RDMA NIC")
PROGRAM = """
import json, logging, sys
from sglang_pd_fabric.fabric.address import describe_address
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.integration.engine import open_engine
from sglang_pd_fabric.settings import load_settings
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
environ, host, ib_device = json.loads(sys.argv[1])
try:
    engine = open_engine(load_settings(environ), host, ib_device)
    print(json.dumps([describe_address(nic.address) for nic in engine.nics]))
    engine.close()
except FabricError as error:
    print("REFUSED", error)
"""


def start(
    host: str = "127.0.0.1",
    ib_device: str | None = None,
    around: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Standard output, and the log."""
    given = {f"SGLANG_PD_FABRIC_{name}": value for name, value in (environ or {"PROVIDER": "tcp"}).items()}
    done = subprocess.run(
        [*around, sys.executable, "-c", PROGRAM, json.dumps([given, host, ib_device])],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def hosts(output: str) -> list[str]:
    return [address.rpartition(":")[0] for address in json.loads(output)]


def test_it_binds_to_the_given_address_and_says_so_once() -> None:
    output, log = start("127.0.0.3")
    assert hosts(output) == ["127.0.0.3"]
    (line,) = [line for line in log.splitlines() if line.startswith("INFO Fabric engine: ")]
    (address,) = json.loads(output)
    for words in ("provider tcp", f"at {address}", "SGLang's local address", "I/O thread ", "libfabric"):
        assert words in line
    assert "WARNING" not in log


def test_the_variable_wins_over_the_flag_and_the_flag_over_the_host() -> None:
    assert hosts(start(ib_device="127.0.0.4,lo")[0]) == ["127.0.0.4", "127.0.0.1"]
    environ = {"PROVIDER": "tcp", "NICS": "127.0.0.5,127.0.0.6,127.0.0.7", "HOST": "127.0.0.8"}
    output, log = start(ib_device="nonsense", environ=environ)
    assert hosts(output) == ["127.0.0.5", "127.0.0.6", "127.0.0.7"]
    assert log.count("named by SGLANG_PD_FABRIC_NICS") == 3
    assert hosts(start(environ={"PROVIDER": "tcp", "HOST": "127.0.0.8"})[0]) == ["127.0.0.8"]


def test_named_cpus_stand_in_the_log() -> None:
    cpu = min(os.sched_getaffinity(0))
    _output, log = start(environ={"PROVIDER": "tcp", "CPUS": str(cpu)})
    assert f"I/O thread on CPUs {cpu} (named by SGLANG_PD_FABRIC_CPUS)" in log


def test_what_is_not_on_this_machine_is_refused_by_name() -> None:
    refused, _log = start(ib_device="mlx5_0")
    assert refused.startswith("REFUSED --disaggregation-ib-device=mlx5_0: there is no interface mlx5_0")
    assert "Interfaces here: lo (127.0.0.1" in refused
    refused, _log = start(environ={"PROVIDER": "tcp", "HOST": "192.0.2.77"})
    assert refused.startswith("REFUSED SGLANG_PD_FABRIC_HOST=192.0.2.77: 192.0.2.77 is no address of this")


@WITHOUT_NIC
@pytest.mark.parametrize("provider", ["efa", "efa-direct", "verbs"])
def test_a_provider_whose_nic_is_missing_is_refused_with_what_is_missing(provider: str) -> None:
    refused, _log = start(environ={"PROVIDER": provider})
    assert refused.startswith(f"REFUSED provider {provider} cannot be used on this machine")
    for words in (
        "fi_getinfo offers no",
        "/sys/class/infiniband",
        "/dev/infiniband",
        "SGLANG_PD_FABRIC_PROVIDER",
    ):
        assert words in refused


@WITHOUT_NIC
def test_auto_is_loud_when_it_falls_back_to_tcp() -> None:
    output, log = start(environ={"PROVIDER": "auto"})
    assert hosts(output) == ["127.0.0.1"]
    assert "WARNING NO RDMA NIC IS USED" in log


def namespaced(script: str) -> tuple[str, ...]:
    """In a network namespace of its own, in which there is nothing but a loopback interface that is down."""
    around = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c")
    if not shutil.which("ip") or subprocess.run([*around, "true"], check=False).returncode:
        pytest.skip("ip is missing, or this machine allows no network namespaces")
    return (*around, f'{script}exec "$@"', "sh")


BRIDGE = (
    "ip link set lo up && ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && "
    "ip link set docker0 up && ip link add veth0 type veth peer name veth1 && "
    "ip addr add 10.77.0.1/24 dev veth0 && ip link set veth0 up && ip link set veth1 up && "
)


def test_with_nothing_but_loopback_it_works() -> None:
    assert hosts(start(around=namespaced("ip link set lo up && "))[0]) == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.77.0.1"])
def test_without_any_network_the_address_is_refused(host: str) -> None:
    refused, _log = start(host, around=namespaced(""))
    assert f"{host} is no address of this machine. Interfaces here: lo (no address)" in refused


def test_a_bridge_beside_the_network_is_not_bound_to() -> None:
    around = namespaced(BRIDGE)
    assert hosts(start("10.77.0.1", around=around)[0]) == ["10.77.0.1"]
    assert hosts(start("10.77.0.1", "docker0", around=around)[0]) == ["172.17.0.1"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a /dev/shm of its own")
def test_shm_without_room_is_refused_with_what_is_there_and_what_it_takes() -> None:
    small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=8m none /dev/shm && exec "$@"', "sh")
    refused, _log = start(around=small, environ={"PROVIDER": "shm"})
    assert refused.startswith("REFUSED provider shm cannot be used on this machine")
    for words in ("/dev/shm has 8 MiB free", "libfabric wants", "--shm-size", "--ipc=host"):
        assert words in refused
