"""The files of a recipe: shell scripts, a Slurm job, a Kubernetes manifest."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from sglang_pd_fabric.tools.recipes.recipe import (
    BOOTSTRAP_PORT,
    HTTP_PORT,
    ROUTER_PORT,
    SIDES,
    Network,
    Recipe,
    Side,
    flags_of,
    shell,
)
from sglang_pd_fabric.tools.recipes.settings import ROUTER, SERVER, VARIABLES

# Where each machine of a Kubernetes cluster keeps checkpoints.
MODELS_FOLDER = "/models"
NIC_RESOURCE = {"efa": "vpc.amazonaws.com/efa", "connectx": "rdma/hca"}
FROM = (
    "# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/{}.toml: change that."
)


def files(recipe: Recipe, network: Network) -> Iterator[tuple[str, str]]:
    """Name and text of each file."""
    for side in SIDES:
        yield f"{side}.sh", server_script(recipe, network, side)
    yield "router.sh", router_script(recipe, network)
    yield "job.sbatch", slurm_job(recipe, network)
    yield "lws.yaml", kubernetes(recipe, network)


def _head(recipe: Recipe, network: Network, what: str) -> str:
    note = "\n".join(f"# {line}" for line in recipe.note.splitlines())
    return f"{FROM.format(recipe.name)}\n#\n# {recipe.title}, {what}, on {network.machine}.\n{note}\n"


def _server_reasons(recipe: Recipe, network: Network, sides: Sequence[Side]) -> str:
    whys = {name: VARIABLES[name].why for name in recipe.variables(network)}
    whys |= {flag: SERVER[flag].why for side in sides for flag, _values in flags_of(recipe.server(side))}
    return _reasons(whys)


def _reasons(whys: Mapping[str, str]) -> str:
    """Why each variable and flag is set, a line each."""
    width = max(map(len, whys))
    lines = (f"#   {name:{width}s}  {why}\n" for name, why in whys.items())
    return "".join(("#\n# Why each is set:\n", *lines))


def _exports(recipe: Recipe, network: Network) -> str:
    return "".join(f"export {name}={value}\n" for name, value in recipe.variables(network).items())


def server_script(recipe: Recipe, network: Network, side: Side) -> str:
    """Starts one server on this machine."""
    nodes = recipe.nodes[side]
    return (
        "#!/usr/bin/env bash\n"
        + _head(recipe, network, f"a {side} server (of {nodes}, a machine each)")
        + "# `sglang-pd-fabric doctor` tells whether this machine can; more flags of SGLang may follow.\n"
        + _server_reasons(recipe, network, [side])
        + f"set -euo pipefail\nulimit -l unlimited\n{_exports(recipe, network)}"
        + f'exec {shell(recipe.server(side))} "$@"\n'
    )


def router_script(recipe: Recipe, network: Network) -> str:
    """Starts the router, given the hosts."""
    return (
        "#!/usr/bin/env bash\n"
        + _head(recipe, network, "the router")
        + "#\n# PREFILL='host host' DECODE='host host host' router.sh\n"
        + "# It can be asked when its /readiness is 200; its /health is so at once.\n"
        + _reasons({flag: setting.why for flag, setting in ROUTER.items()})
        + "set -euo pipefail\nservers=()\n"
        + f'for host in $PREFILL; do servers+=(--prefill "http://$host:{HTTP_PORT}" {BOOTSTRAP_PORT}); done\n'
        + f'for host in $DECODE; do servers+=(--decode "http://$host:{HTTP_PORT}"); done\n'
        + f'exec {shell(recipe.router({"prefill": [], "decode": []}))} "${{servers[@]}}" "$@"\n'
    )


def slurm_job(recipe: Recipe, network: Network) -> str:
    """All servers and the router as one job: a machine for each server, the router on the first."""
    prefills, decodes = recipe.nodes["prefill"], recipe.nodes["decode"]
    folder = f"launch/{recipe.name}/{network.name}"
    return (
        "#!/usr/bin/env bash\n"
        f"#SBATCH --job-name={recipe.name}\n#SBATCH --nodes={prefills + decodes}\n"
        f"#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node={network.gpus}\n#SBATCH --exclusive\n"
        + _head(recipe, network, f"{prefills} prefill : {decodes} decode and the router as a Slurm job")
        + "#\n# Submit it from the root of this repository: sbatch "
        + f"{folder}/job.sbatch\n"
        + "# All nodes must see it at the same place, and find a python3 with SGLang and this package.\n"
        + "set -euo pipefail\n"
        + 'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'
        + f'prefill=("${{hosts[@]:0:{prefills}}}") decode=("${{hosts[@]:{prefills}}}")\n'
        + "start() {  # start HOST SCRIPT\n"
        + "  # The router shares a node. A server uses all CPUs of its own: it places its threads itself.\n"
        + '  srun --nodes=1 --ntasks=1 --overlap --cpu-bind=none --nodelist="$1" "$2" &\n}\n'
        + f'for host in "${{prefill[@]}}"; do start "$host" {folder}/prefill.sh; done\n'
        + f'for host in "${{decode[@]}}"; do start "$host" {folder}/decode.sh; done\n'
        + f'PREFILL="${{prefill[*]}}" DECODE="${{decode[*]}}" start "${{prefill[0]}}" {folder}/router.sh\n'
        + "# The first that ends takes the others with it.\nwait -n\n"
    )


def kubernetes(recipe: Recipe, network: Network) -> str:
    """A LeaderWorkerSet for each side, and the router as a Deployment with its Service."""
    sides = [_worker_set(recipe, network, side) for side in SIDES]
    documents = [*sides, *(_service(recipe, side) for side in SIDES), *_router(recipe, network)]
    body: str = yaml.safe_dump_all(documents, sort_keys=False, width=110)
    return (
        _head(recipe, network, "for Kubernetes with LeaderWorkerSet")
        + f"#\n# Build the image first (launch/{network.name}.Dockerfile), push it, name your registry.\n"
        + f"# Checkpoints stay in {MODELS_FOLDER} of each machine (HF_HOME): no start fetches them again.\n"
        + "# NICs lock what they write into: IPC_LOCK. NCCL and our shm want a large /dev/shm.\n"
        + _server_reasons(recipe, network, SIDES)
        + "---\n"
        + body
    )


def _image(network: Network) -> str:
    return f"REGISTRY/sglang-pd-fabric:{network.name}"


def _worker_set(recipe: Recipe, network: Network, side: Side) -> dict[str, Any]:
    name = f"{recipe.name}-{side}"
    resources = {"nvidia.com/gpu": network.gpus, NIC_RESOURCE[network.name]: network.nics}
    variables = {**recipe.variables(network), "HF_HOME": MODELS_FOLDER}
    container = {
        "name": side,
        "image": _image(network),
        "command": recipe.server(side),
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "ports": [{"containerPort": HTTP_PORT}] + [{"containerPort": BOOTSTRAP_PORT}] * (side == "prefill"),
        "readinessProbe": {"httpGet": {"path": "/health", "port": HTTP_PORT}, "periodSeconds": 10},
        "resources": {"limits": resources, "requests": resources},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "models", "mountPath": MODELS_FOLDER},
        ],
    }
    pod = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "containers": [container],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
                {"name": "models", "hostPath": {"path": MODELS_FOLDER, "type": "DirectoryOrCreate"}},
            ],
        },
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": recipe.nodes[side],
            "leaderWorkerTemplate": {"size": 1, "workerTemplate": pod},
        },
    }


def _service(recipe: Recipe, side: Side) -> dict[str, Any]:
    """Gives each server a name: NAME-0.NAME, NAME-1.NAME, ..."""
    name = f"{recipe.name}-{side}"
    spec = {"clusterIP": "None", "selector": {"app": name}, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _router(recipe: Recipe, network: Network) -> list[dict[str, Any]]:
    name = f"{recipe.name}-router"
    hosts = {
        side: [f"{recipe.name}-{side}-{i}.{recipe.name}-{side}" for i in range(recipe.nodes[side])]
        for side in SIDES
    }
    container = {
        "name": "router",
        "image": _image(network),
        "command": recipe.router(hosts),
        "ports": [{"containerPort": ROUTER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/readiness", "port": ROUTER_PORT}, "periodSeconds": 10},
    }
    labels = {"app": name}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": ROUTER_PORT}]},
    }
    return [deployment, service]
