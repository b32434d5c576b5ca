"""`sglang-pd-fabric recipes`: writes the launch files of every model, or runs one of them at tiny size."""

import argparse
import sys
from pathlib import Path

from sglang_pd_fabric.tools.recipes.files import files
from sglang_pd_fabric.tools.recipes.recipe import MODELS, Recipe, RecipeError, load_all

PURPOSE = "write launch files (shell, Slurm, Kubernetes) for whole models, or run one at tiny size here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="write all files below it, as DIR/MODEL/NETWORK/FILE"
    )
    parser.add_argument("--check", type=Path, metavar="DIR", help="only compare: exit 1 if a file differs")
    parser.add_argument(
        "--tiny",
        choices=sorted(path.stem for path in MODELS.glob("*.toml")),
        help="start the same commands with a tiny model on this machine, compare the answers with an "
        "ordinary server's, and show what was replaced",
    )
    parser.add_argument(
        "--decodes", type=int, default=1, metavar="N", help="decode servers of --tiny (default: 1)"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="logs of --tiny (default: a new folder)")


def written(recipe: Recipe, folder: Path) -> dict[Path, str]:
    """All files of a recipe, by their place."""
    return {
        folder / recipe.name / network.name / name: text
        for network in recipe.networks
        for name, text in files(recipe, network)
    }


def stale(folder: Path) -> list[Path]:
    """Files below the folder that are not what the descriptions say."""
    wanted = {place: text for recipe in load_all() for place, text in written(recipe, folder).items()}
    return [place for place, text in wanted.items() if not place.is_file() or place.read_text() != text]


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    try:
        recipes = load_all()
    except RecipeError as error:
        print(error, file=sys.stderr)
        return 1
    if options.check is not None:
        old = stale(options.check)
        print("\n".join(f"{path} is not what its description says" for path in old) or "all as described")
        return int(bool(old))
    if options.tiny is not None:
        return _run_tiny(next(recipe for recipe in recipes if recipe.name == options.tiny), options)
    for recipe in recipes:
        sizes = ", ".join(f"{network.name}: {network.machine}" for network in recipe.networks)
        print(f"{recipe.name}: {recipe.nodes['prefill']} prefill : {recipe.nodes['decode']} decode; {sizes}")
        if options.output is not None:
            for place, text in written(recipe, options.output).items():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
                place.chmod(0o644 if place.suffix == ".yaml" else 0o755)
    return 0


def _run_tiny(recipe: Recipe, options: argparse.Namespace) -> int:
    from sglang_pd_fabric.tools.demo.processes import ServerError
    from sglang_pd_fabric.tools.recipes.local import judge

    try:
        return judge(recipe, options.decodes, options.logs, lambda line: print(line, flush=True))
    except ServerError as error:
        print(f"\nfailed: {error}", file=sys.stderr)
        return 1
