"""Launch files: they are what their descriptions say, and SGLang, bash and YAML understand them.

Their tiny form, which `tests/sglang/test_recipes_tiny.py` runs, is the same but for a table of values.
"""

import argparse
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from sglang_pd_fabric.integration.hnd import READERS
from sglang_pd_fabric.integration.version import SUPPORTED_SGLANG
from sglang_pd_fabric.tools.demo.servers import Ports
from sglang_pd_fabric.tools.recipes import main as recipes
from sglang_pd_fabric.tools.recipes.files import files
from sglang_pd_fabric.tools.recipes.recipe import (
    MODELS,
    SIDES,
    Network,
    Recipe,
    RecipeError,
    arguments,
    flags_of,
    load,
    load_all,
)
from sglang_pd_fabric.tools.recipes.settings import ADDED_FLAGS, ADDED_VARIABLES, ROUTER, SERVER, VARIABLES
from sglang_pd_fabric.tools.recipes.tiny import Change, Tiny, tiny

LAUNCH = Path(__file__).parents[2] / "launch"
ALL = [(recipe, network) for recipe in load_all() for network in recipe.networks]
EACH = pytest.mark.parametrize(("recipe", "network"), ALL, ids=[f"{r.name}-{n.name}" for r, n in ALL])


def test_the_files_of_the_repository_are_what_the_descriptions_say() -> None:
    assert not recipes.stale(LAUNCH), "run `sglang-pd-fabric recipes --output launch`"
    wanted = {place for recipe in load_all() for place in recipes.written(recipe, LAUNCH)}
    there = {path for recipe in load_all() for path in (LAUNCH / recipe.name).rglob("*") if path.is_file()}
    assert there == wanted


def test_a_file_that_drifted_is_named(tmp_path: Path) -> None:
    for recipe in load_all():
        for place, text in recipes.written(recipe, tmp_path).items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    assert not recipes.stale(tmp_path)
    changed = tmp_path / "deepseek-r1/efa/decode.sh"
    changed.write_text(changed.read_text().replace("--page-size 64", "--page-size 16"))
    assert recipes.stale(tmp_path) == [changed]


@pytest.fixture(scope="module")
def server_parser() -> argparse.ArgumentParser:
    """SGLang's own, as `sglang.launch_server` has it, with our backend."""
    from sglang.srt.server_args import ServerArgs, add_disagg_transfer_backend_choices

    add_disagg_transfer_backend_choices(["fabric"])
    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    return parser


@EACH
def test_sglang_takes_every_flag_of_a_server(
    recipe: Recipe, network: Network, server_parser: argparse.ArgumentParser
) -> None:
    for side in SIDES:
        words = recipe.server(side)
        taken = server_parser.parse_args(words[words.index("--model-path") :])
        assert taken.disaggregation_mode == side
        assert taken.disaggregation_transfer_backend == "fabric"
        assert taken.model_path == recipe.checkpoint
        assert taken.tp_size == recipe.flags[side]["tp-size"] <= network.gpus
        assert taken.page_size == recipe.flags[side]["page-size"]


def test_a_flag_that_sglang_does_not_have_is_noticed(server_parser: argparse.ArgumentParser) -> None:
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        server_parser.parse_args(["--model-path", "x", "--no-such-flag", "1"])


@EACH
def test_the_router_takes_every_flag(recipe: Recipe, network: Network) -> None:
    from sglang_router.launch_router import parse_router_args

    words = recipe.router({"prefill": ["a", "b"], "decode": ["c"]})
    taken = parse_router_args(words[words.index("--pd-disaggregation") :])
    assert taken.pd_disaggregation
    assert [url for url, _port in taken.prefill_urls] == ["http://a:30000", "http://b:30000"]
    assert {port for _url, port in taken.prefill_urls} == {8998}
    assert taken.decode_urls == ["http://c:30000"]
    assert network.name in ("efa", "connectx")


@EACH
def test_bash_understands_the_scripts_and_they_set_what_is_asked_for(
    recipe: Recipe, network: Network
) -> None:
    texts = dict(files(recipe, network))
    for name, text in texts.items():
        if name.endswith((".sh", ".sbatch")):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for side in SIDES:
        # What the script would run, with the command replaced by printing.
        text = (
            texts[f"{side}.sh"]
            .replace("ulimit -l unlimited\n", "")
            .replace("exec python3", "printf '%s\\n' python3")
        )
        shown = subprocess.run(
            ["bash", "-s", "--", "--log-level", "info"],
            input=text,
            text=True,
            capture_output=True,
            check=True,
        )
        assert shown.stdout.splitlines() == [*recipe.server(side), "--log-level", "info"]
        for variable, value in recipe.variables(network).items():
            assert f"export {variable}={value}\n" in texts[f"{side}.sh"]


@EACH
def test_the_router_script_names_every_host(recipe: Recipe, network: Network) -> None:
    text = dict(files(recipe, network))["router.sh"].replace("exec python3", "printf '%s\\n' python3")
    env = {"PREFILL": "p0", "DECODE": "d0 d1", "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(["bash", "-s"], input=text, text=True, capture_output=True, check=True, env=env)
    words = shown.stdout.splitlines()
    assert words[words.index("--prefill") :][:3] == ["--prefill", "http://p0:30000", "8998"]
    assert [words[i + 1] for i, word in enumerate(words) if word == "--decode"] == [
        "http://d0:30000",
        "http://d1:30000",
    ]


@EACH
def test_the_manifest_asks_for_all_gpus_and_nics_and_reaches_every_server(
    recipe: Recipe, network: Network
) -> None:
    documents = list(yaml.safe_load_all(dict(files(recipe, network))["lws.yaml"]))
    sets = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "LeaderWorkerSet"}
    services = {d["metadata"]["name"] for d in documents if d["kind"] == "Service"}
    router = next(d for d in documents if d["kind"] == "Deployment")["spec"]["template"]["spec"][
        "containers"
    ][0]
    hosts = {word.split("//")[1].split(":")[0] for word in router["command"] if word.startswith("http://")}
    for side in SIDES:
        name = f"{recipe.name}-{side}"
        container = sets[name]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
        limits = container["resources"]["limits"]
        assert limits.pop("nvidia.com/gpu") == network.gpus
        assert list(limits.values()) == [network.nics]
        assert container["command"] == recipe.server(side)
        assert container["image"].endswith(f":{network.name}")
        assert name in services
        assert {f"{name}-{i}.{name}" for i in range(sets[name]["replicas"])} <= hosts


@EACH
def test_the_scripts_say_why_each_flag_and_variable_is_set(recipe: Recipe, network: Network) -> None:
    texts = dict(files(recipe, network))
    for side in SIDES:
        lines = texts[f"{side}.sh"].splitlines()
        for name in (*recipe.variables(network), *(flag for flag, _values in flags_of(recipe.server(side)))):
            why = (SERVER | VARIABLES)[name].why
            assert any(line.split()[1:2] == [name] and line.endswith(f"  {why}") for line in lines), name


def test_pages_by_head_come_with_the_flags_that_they_need() -> None:
    """Without them a decode server on a GPU would end at its start (`integration/hnd.py`)."""
    by_head = [recipe for recipe in load_all() if "SGLANG_USE_HND_KVCACHE" in recipe.env]
    assert by_head
    for recipe in by_head:
        assert {recipe.flags[side]["attention-backend"] for side in SIDES} <= set(READERS)
        assert recipe.flags["decode"]["disaggregation-decode-retraction-backup"] == "none"


def tiny_form(recipe: Recipe, network: Network, decodes: int = 1) -> Tiny:
    decode = [Ports(20010 + index) for index in range(decodes)]
    return tiny(recipe, network, Path("/tiny"), {"prefill": [Ports(20000, 20001)], "decode": decode}, 20002)


@EACH
def test_the_tiny_form_has_the_same_flags_in_the_same_order_and_says_what_differs(
    recipe: Recipe, network: Network
) -> None:
    form = tiny_form(recipe, network)
    full = {"prefill": recipe.server("prefill"), "decode": recipe.server("decode")}
    full["router"] = recipe.router({side: [f"{side}-0"] for side in SIDES})
    found = []
    for where, spec in (("prefill", form.prefills[0]), ("decode", form.decodes[0]), ("router", form.router)):
        table = ROUTER if where == "router" else SERVER
        before, after = list(flags_of(full[where])), list(flags_of(spec.command))
        added = [] if where == "router" else [(flag, (value,)) for flag, (value, _) in ADDED_FLAGS.items()]
        assert after[len(before) :] == added
        found += [(where, flag, "", *values) for flag, values in added]
        after = after[: len(before)]
        assert [flag for flag, _ in before] == [flag for flag, _ in after]
        assert spec.command[1:3] == tuple(full[where][1:3])
        for (flag, old), (_, new) in zip(before, after, strict=True):
            assert len(new) == len(old)
            if new != old:
                assert table[flag].replaced
                assert table[flag].tiny_why
                found.append((where, flag, " ".join(old), " ".join(new)))
    for side, spec in (("prefill", form.prefills[0]), ("decode", form.decodes[0])):
        variables = recipe.variables(network)
        assert spec.env.keys() == variables.keys() | ADDED_VARIABLES.keys()
        found += [
            (side, name, variables.get(name, ""), value)
            for name, value in spec.env.items()
            if variables.get(name, "") != value
        ]
    found.append(("decode", "servers", "3", "1"))
    told = [(change.where, change.name, change.full, change.tiny) for change in form.changes]
    assert sorted(told) == sorted(found)


@EACH
def test_sglang_takes_every_flag_of_the_tiny_form(
    recipe: Recipe, network: Network, server_parser: argparse.ArgumentParser
) -> None:
    form = tiny_form(recipe, network, decodes=2)
    assert len(form.decodes) == 2
    for spec in (*form.prefills, *form.decodes):
        words = list(spec.command)
        taken = server_parser.parse_args(words[words.index("--model-path") :])
        assert taken.model_path == "/tiny"
        assert taken.tp_size <= 2
        assert f"http://{taken.host}:{taken.port}" == spec.url


def test_all_networks_have_one_tiny_form() -> None:
    for recipe in load_all():
        first, *others = (tiny_form(recipe, network) for network in recipe.networks)
        for other in others:
            assert (other.prefills, other.decodes, other.router) == (
                first.prefills,
                first.decodes,
                first.router,
            )


def test_what_is_replaced_for_the_tiny_form_is_told_as_a_table() -> None:
    from sglang_pd_fabric.tools.recipes.local import table

    changes = (
        Change("decode", "--tp-size", "8", "2", "two cores"),
        Change("router", "X", "", "1", "why not"),
    )
    assert (
        table(changes) == "decode  --tp-size  8        2  two cores\nrouter  X          (unset)  1  why not"
    )


@pytest.mark.parametrize("network", ["efa", "connectx"])
def test_the_images_have_the_sglang_that_we_work_with_and_extras_that_exist(network: str) -> None:
    text = (LAUNCH / f"{network}.Dockerfile").read_text()
    assert f"FROM lmsysorg/sglang:v{SUPPORTED_SGLANG}\n" in text
    has = tomllib.loads((LAUNCH.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extras,) = re.findall(r"pip install '/opt/sglang-pd-fabric\[(.*)\]'", text)
    assert {"sglang", "cuda"} <= set(extras.split(",")) <= has.keys()
    # Two libfabrics in one process fight; the one of the EFA installer is to be the only one.
    assert ("libfabric" in extras.split(",")) == (network != "efa")


def test_flags_that_are_false_are_left_out_and_true_ones_have_no_value() -> None:
    assert arguments({"a": True, "b": False, "c": 1, "d": "x"}) == ["--a", "--c", "1", "--d", "x"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("tp-size = 8", "tp-size = 16", r"tp-size=16.*has 8 GPUs"),
        ("[networks.efa]", "[networks.token-ring]", "networks.token-ring: efa, connectx are possible"),
        ('title = "DeepSeek-R1"', "", "'title' is missing"),
        ('tiny = "mla"', 'tiny = "mha"', "tiny=mha: gqa, mqa, mla are possible"),
        ("page-size = 64", "page-sise = 64", "--page-sise is not in recipes/settings.py: say why it is set"),
        ("[flags]", '[env]\nFI_LOG = "1"\n[flags]', "FI_LOG is not in recipes/settings.py"),
    ],
)
def test_a_description_that_cannot_be_used_is_refused(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text((MODELS / "deepseek-r1.toml").read_text().replace(before, after))
    with pytest.raises(RecipeError, match=message):
        load(path)
