"""What users may say instead: SGLang's ``--disaggregation-ib-device``, or a variable with the same syntax."""

from pathlib import Path

import pytest

from sglang_pd_fabric.fabric.topology import OverrideError, Topology, parse_override, placement_for

from . import machines
from .conftest import Look

GPU_0, GPU_1 = "0000:1b:00.0", "0000:43:00.0"


@pytest.fixture
def dgx(look: Look) -> Topology:
    return look(machines.dgx_h100())


@pytest.mark.parametrize("text", [None, "", "  "])
def test_nothing_said_is_no_override(dgx: Topology, text: str | None) -> None:
    assert parse_override(text, dgx) is None


@pytest.mark.parametrize(
    "text", ["mlx5_0,mlx5_3", " mlx5_0 , mlx5_3 ", "mlx5_0,mlx5_3,", "mlx5_0,mlx5_3,mlx5_0"]
)
def test_blanks_and_repetitions_do_no_harm(dgx: Topology, text: str) -> None:
    override = parse_override(text, dgx)
    assert override is not None
    assert override.everywhere == ("mlx5_0", "mlx5_3")


def test_a_list_is_divided_among_the_gpus_by_distance(dgx: Topology) -> None:
    override = parse_override("mlx5_0,mlx5_3", dgx)
    assert placement_for(dgx, GPU_0, 0, override).nic_names == ("mlx5_0",)
    assert placement_for(dgx, GPU_1, 1, override).nic_names == ("mlx5_3",)
    assert "--disaggregation-ib-device" in placement_for(dgx, GPU_1, 1, override).nics[0].reason


def test_a_list_overrules_what_looks_like_a_front_end_nic(dgx: Topology) -> None:
    override = parse_override("mlx5_1", dgx)
    assert placement_for(dgx, GPU_0, 0, override).nic_names == ("mlx5_1",)


MAPPING = '{"0": "mlx5_0, mlx5_1", "1": "mlx5_11"}'


def test_a_mapping_is_followed_to_the_letter(dgx: Topology) -> None:
    override = parse_override(MAPPING, dgx)
    assert placement_for(dgx, GPU_0, 0, override).nic_names == ("mlx5_0", "mlx5_1")
    assert placement_for(dgx, GPU_1, 1, override).nic_names == ("mlx5_11",)


def test_a_mapping_counts_gpus_as_the_process_sees_them(dgx: Topology) -> None:
    # CUDA_VISIBLE_DEVICES=1: the second GPU of the machine is number 0 in the process.
    assert placement_for(dgx, GPU_1, 0, parse_override(MAPPING, dgx)).nic_names == ("mlx5_0", "mlx5_1")


def test_a_mapping_may_be_in_a_json_file(dgx: Topology, tmp_path: Path) -> None:
    file = tmp_path / "nics.json"
    file.write_text(MAPPING)
    from_file, direct = parse_override(str(file), dgx), parse_override(MAPPING, dgx)
    assert from_file is not None
    assert direct is not None
    assert from_file.per_gpu == direct.per_gpu


def test_a_gpu_without_an_entry_is_refused(dgx: Topology) -> None:
    with pytest.raises(OverrideError, match="no entry for GPU 2, only for 0, 1"):
        placement_for(dgx, "0000:52:00.0", 2, parse_override(MAPPING, dgx))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mlx5_0,mlx5_77", "there is no mlx5_77"),
        ("mlx5_0:1", "there is no mlx5_0:1"),
        (",", "no NIC is named"),
        ("{", "not valid JSON"),
        ("{0: 'mlx5_0'}", "not valid JSON"),
        ("{}", "expected a mapping"),
        ('{"gpu0": "mlx5_0"}', '{"gpu0": "mlx5_0"} is not a GPU number'),
        ('{"0": ["mlx5_0"]}', "is not a GPU number with a string"),
        ('{"0": "mlx5_0", "3": "mlx5_77"}', "there is no mlx5_77 (GPU 3)"),
        ('{"0": ""}', "no NIC is named (GPU 0)"),
        ("/no/such/file.json", "the file cannot be read (No such file or directory)"),
    ],
)
def test_an_error_names_the_flag_the_value_and_what_there_is(dgx: Topology, text: str, what: str) -> None:
    with pytest.raises(OverrideError) as caught:
        parse_override(text, dgx)
    message = str(caught.value)
    assert message.startswith(f"--disaggregation-ib-device={text}: ")
    assert what in message
    assert "RDMA devices here: mlx5_0, mlx5_1, mlx5_2, mlx5_3" in message


def test_the_error_names_the_variable_if_that_said_it(dgx: Topology) -> None:
    with pytest.raises(OverrideError, match="SGLANG_PD_FABRIC_NICS=ib0: there is no ib0"):
        parse_override("ib0", dgx, flag="SGLANG_PD_FABRIC_NICS")


def test_a_nic_that_cannot_work_is_refused_with_the_reason(look: Look) -> None:
    with pytest.raises(OverrideError, match=r"enp71s0 cannot be used: no RDMA device \(driver ena\)"):
        parse_override("enp71s0", look(machines.p5()))


def test_a_machine_without_rdma_says_so(look: Look) -> None:
    with pytest.raises(OverrideError, match="This machine has no RDMA device"):
        parse_override("mlx5_0", look(machines.laptop()))
