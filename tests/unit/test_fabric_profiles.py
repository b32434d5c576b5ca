"""Profiles as data, which of them a machine can serve, and what is said when it cannot."""

from pathlib import Path

import pytest
from sglang_pd_fabric.fabric._core import lib

from sglang_pd_fabric.fabric import profiles
from sglang_pd_fabric.fabric.availability import (
    UNLIMITED,
    Machine,
    ProviderMissingError,
    best,
    features,
    offered,
    problems,
)
from sglang_pd_fabric.fabric.library import ProviderInfo
from sglang_pd_fabric.fabric.opening import Opening
from sglang_pd_fabric.fabric.profiles import PROFILES, Profile, Version
from sglang_pd_fabric.settings import load_settings

TCP = [ProviderInfo("tcp", "10.0.0.0/8", "eth0"), ProviderInfo("tcp;ofi_rxm", "10.0.0.0/8", "eth0")]
EFA = [ProviderInfo("efa", name, "rdmap79s0-rdm") for name in ("efa-direct", "efa")]
VERBS = [ProviderInfo("verbs;ofi_rxm", "IB-0xfe80000000000000", "mlx5_0")]
LAPTOP = Machine({}, False, 8 << 20, shared_memory=8 << 30, cpus=16)
P5 = Machine({"rdmap79s0": "efa"}, True, UNLIMITED, shared_memory=1 << 40, cpus=192)
HGX = Machine({"mlx5_0": "mlx5_core"}, True, UNLIMITED, shared_memory=1 << 40, cpus=224)
CONTAINER = LAPTOP._replace(shared_memory=64 << 20)  # docker's default
EVERY = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def test_the_setting_has_a_choice_for_every_profile() -> None:
    for name in ("auto", *PROFILES):
        assert load_settings({"SGLANG_PD_FABRIC_PROVIDER": name}).provider == name


@EVERY
def test_a_profile_fits_the_core(profile: Profile) -> None:
    assert len(profile.options) <= lib.SPF_MAX_OPTIONS
    assert all(option.nbytes in (1, 4, 8) for option in profile.options)
    assert 1 <= profile.segments <= 8
    assert profile.minimum >= (1, 17)
    assert profile.peer_window <= profile.window // 2, "a frozen peer leaves room for others"


@EVERY
def test_a_queue_holds_own_writes_and_immediates_of_several_writers(profile: Profile) -> None:
    assert profile.writers >= 16
    assert profile.window + profile.writers * profile.peer_window <= profile.queue_entries


@EVERY
def test_a_profile_says_how_writes_to_a_removed_peer_end(profile: Profile) -> None:
    """We end them (cut), nobody ever learns of it (renew), or the provider reports them (outlives)."""
    raw = Opening(profile, (2, 5), sources=[None], domains=[], gpu=False).config.profile
    assert profile.outlives == (profile.name in ("efa", "efa-direct", "verbs"))
    assert profile.outlives != (profile.cut or profile.renew)
    assert (raw.outlives, raw.cut, raw.renew) == (profile.outlives, profile.cut, profile.renew)


@EVERY
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("version", [(1, 17), (1, 18), (1, 22), (2, 5), (2, 6)])
def test_a_library_gets_only_what_it_can_know(profile: Profile, version: Version, gpu: bool) -> None:
    opening = Opening(profile, version, sources=[None, "10.0.0.1"], domains=["a"], gpu=gpu)
    raw = opening.config.profile
    expected = [o for o in profile.options if o.since <= version and (gpu or not o.gpu_only)]
    assert list(opening.option_names) == [o.name for o in expected]
    rows = [raw.options[i] for i in range(raw.option_count)]
    assert [(row.number, row.bytes, row.value) for row in rows] == [o[1:4] for o in expected]
    assert raw.write_flags == sum(f.bit for f in profile.write_flags if f.since <= version)
    assert raw.caps == (lib.FI_HMEM if gpu else 0)
    assert raw.mr_mode & lib.FI_MR_HMEM


def test_efa_asks_for_an_interface_that_offloads_writes_and_for_an_event_queue() -> None:
    for name in ("efa", "efa-direct"):
        raw = Opening(PROFILES[name], (2, 6), sources=[None], domains=[], gpu=False).config.profile
        assert raw.api_version >= 1 << 16 | 18
        assert raw.event_queue
        assert PROFILES[name].inserts_both_ways
        assert PROFILES[name].minimum >= (1, 18)
        assert raw.write_flags == profiles.FI_EFA_WR_HIGH_PPS


def test_numbers_of_options_are_those_of_the_headers() -> None:
    assert profiles.FI_OPT_EFA_RNR_RETRY == -(0xEFA << 16)
    assert profiles.FI_OPT_EFA_EMULATED_WRITE == -(0xEFA << 16) + 2
    assert (profiles.FI_OPT_CUDA_API_PERMITTED, profiles.FI_OPT_SHARED_MEMORY_PERMITTED) == (10, 11)


def test_a_device_of_sysfs_has_a_domain_of_libfabric() -> None:
    assert PROFILES["efa"].domain("rdmap79s0") == "rdmap79s0-rdm"
    assert PROFILES["efa"].domain("rdmap79s0-rdm") == "rdmap79s0-rdm"
    assert PROFILES["verbs"].domain("mlx5_0") == "mlx5_0"


def test_efa_and_efa_direct_are_told_apart() -> None:
    assert [info.fabric for info in offered(PROFILES["efa"], EFA)] == ["efa"]
    assert [info.fabric for info in offered(PROFILES["efa-direct"], EFA)] == ["efa-direct"]


@pytest.mark.parametrize(
    ("name", "version", "found", "machine", "says"),
    [
        ("efa", (2, 5), TCP, LAPTOP, ["fi_getinfo offers no efa", "it offers tcp", "no RDMA NIC", "uverbs"]),
        (
            "efa",
            (2, 5),
            TCP,
            LAPTOP,
            ["8192 KiB", "ulimit -l unlimited", "memlock=-1", "--device=/dev/infin"],
        ),
        ("verbs", (2, 5), [], LAPTOP, ["offers no verbs;ofi_rxm; it offers nothing", "is empty or absent"]),
        ("efa", (2, 5), TCP, HGX, ["no device of the driver efa: it has mlx5_0 (mlx5_core)"]),
        ("verbs", (2, 5), TCP, P5, ["no device for verbs: it has rdmap79s0 (efa)"]),
        ("efa", (2, 5), TCP, P5, ["rdmap79s0 would do", "built without efa"]),
        ("efa", (2, 5), TCP, P5._replace(has_device_nodes=False), ["/dev/infiniband/uverbs* is absent"]),
        ("efa", (1, 17), EFA, P5, ["libfabric is 1.17, efa needs 1.18 or newer", "EFA installer"]),
        ("efa-direct", (2, 0), EFA[1:], P5, ["efa-direct needs 2.1", "no efa (fabric efa-direct)"]),
        ("tcp", (2, 5), [], LAPTOP, ["fi_getinfo offers no tcp"]),
        (
            "shm",
            (2, 5),
            TCP,
            CONTAINER,
            ["/dev/shm has 64 MiB free", "wants 256 MiB (for 16 CPUs)", "--shm-size"],
        ),
    ],
)
def test_what_is_missing_is_named_with_its_fix(
    name: str, version: Version, found: list[ProviderInfo], machine: Machine, says: list[str]
) -> None:
    text = "\n".join(problems(PROFILES[name], version, found, machine))
    for part in says:
        assert part in text


def test_what_is_in_order_is_not_blamed() -> None:
    text = "\n".join(problems(PROFILES["efa"], (2, 5), TCP, P5))
    assert "locked memory" not in text
    assert "uverbs" not in text
    assert problems(PROFILES["tcp"], (1, 17), TCP[1:], LAPTOP) == []
    text = "\n".join(problems(PROFILES["tcp"], (2, 5), [], LAPTOP))
    assert "infiniband" not in text
    assert "/dev/shm" not in "\n".join(problems(PROFILES["shm"], (2, 5), TCP, LAPTOP))
    assert "/dev/shm" not in "\n".join(problems(PROFILES["tcp"], (2, 5), [], CONTAINER))


@pytest.mark.parametrize(
    ("version", "found", "machine", "name", "passed_over"),
    [
        ((2, 5), EFA + VERBS + TCP, P5, "efa", []),
        ((2, 5), VERBS + TCP, HGX, "verbs", ["efa"]),
        ((2, 5), TCP, LAPTOP, "tcp", ["efa", "verbs"]),
        ((1, 17), EFA + TCP, P5, "tcp", ["efa", "verbs"]),
    ],
)
def test_auto_prefers_efa_to_verbs_to_tcp(
    version: Version, found: list[ProviderInfo], machine: Machine, name: str, passed_over: list[str]
) -> None:
    choice = best(version, found, machine)
    assert choice.profile is PROFILES[name]
    assert [line.split(":")[0] for line in choice.passed_over] == passed_over


def test_auto_says_more_of_a_nic_that_is_there_and_cannot_be_used() -> None:
    efa, verbs = best((2, 5), TCP, P5._replace(memlock=64 << 10)).passed_over
    assert "locked memory is limited to 64 KiB" in efa
    assert verbs == "verbs: there is no such NIC in /sys/class/infiniband"


def test_auto_without_any_provider_is_an_error() -> None:
    with pytest.raises(ProviderMissingError, match="tcp: fi_getinfo offers no tcp"):
        best((2, 5), [], LAPTOP)


def test_the_report_says_what_a_library_brings_and_why_not() -> None:
    old, new = (features(PROFILES["efa"], version, EFA) for version in ((1, 17), (2, 6)))
    assert all(feature.available for name, feature in new.items() if name != "sleep on the queue")
    assert not old["endpoint"].available
    assert old["GPU memory by dmabuf"] == (False, "libfabric 1.17, needs 1.20: FI_MR_DMABUF")
    assert not old["FI_EFA_WR_HIGH_PPS"].available
    assert "2.6" in old["FI_EFA_WR_HIGH_PPS"].why
    assert features(PROFILES["tcp"], (2, 5), TCP)["sleep on the queue"].available


def test_the_machine_is_read_from_a_root(tmp_path: Path) -> None:
    assert Machine.read(tmp_path)[:2] == ({}, False)
    for device, driver in (("rdmap79s0", "efa"), ("mlx5_0", "mlx5_core")):
        (tmp_path / "sys/bus/drivers" / driver).mkdir(parents=True)
        folder = tmp_path / "sys/class/infiniband" / device / "device"
        folder.mkdir(parents=True)
        (folder / "driver").symlink_to(tmp_path / "sys/bus/drivers" / driver)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/rdma_cm").touch()
    assert Machine.read(tmp_path)[:2] == ({"mlx5_0": "mlx5_core", "rdmap79s0": "efa"}, False)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    assert Machine.read(tmp_path).shared_memory == 0
    (tmp_path / "dev/shm").mkdir()
    machine = Machine.read(tmp_path)
    assert machine.shared_memory > 0
    assert machine.has_device_nodes
    assert machine.devices_for(PROFILES["efa"]) == ["rdmap79s0"]
    assert machine.devices_for(PROFILES["verbs"]) == ["mlx5_0"]
    assert machine.devices_for(PROFILES["tcp"]) == []
