"""Time to resolve every recipe, with and without reading the tables of facts. Aim: all recipes in less than 2 seconds.

python bench/bench_resolve.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AIM_SECONDS = 2.0


def resolve_all(recipes: list[Path]) -> float:
    """Seconds for all recipes; the first call also reads the tables."""
    from gpu_ami.recipes import load_facts, read_recipe, resolve

    started = time.perf_counter()
    for recipe in recipes:
        resolve(read_recipe(recipe, load_facts()), load_facts())
    return time.perf_counter() - started


def main() -> int:
    recipes = sorted((ROOT / "variables" / "recipes").glob("*.yml"))
    cold = resolve_all(recipes)
    warm = min(resolve_all(recipes) for _ in range(5))
    print(f"{len(recipes)} recipes: {cold:.3f} s with the tables read, {warm:.3f} s after (aim: {AIM_SECONDS:.0f} s)")
    return 0 if cold < AIM_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
