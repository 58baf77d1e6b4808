"""Compares what a receiver has got with the names that the OpenTelemetry project has generated from its conventions.

usage: conventions.py FILE      FILE is a receiver's; prints how many names of each kind were known, and fails if one was not

Kennel names the conventions 1.42.0. There is no release of this package for just these: 0.64b0 is for 1.41.1, 0.65b0 for 1.43.0. The SDK of
these tests needs 0.66b2, for 1.44.0, which knows the schema of 1.42.0. What was renamed since then is still in it, as deprecated.
"""

import importlib
import json
import sys
from pathlib import Path

from opentelemetry import semconv
from opentelemetry.semconv.schemas import Schemas

OWN = "kennel."


def constants(part):
    """All names in the modules of this part, attributes or metrics, those that are not stable yet among them."""
    known = set()
    root = Path(semconv.__path__[0])
    for file in root.rglob(f"{part}/*.py"):
        module = ".".join((semconv.__name__, *file.relative_to(root).with_suffix("").parts))
        values = vars(importlib.import_module(module)).items()
        known.update(value for name, value in values if name.isupper() and isinstance(value, str))
    return known


def main(path):
    schemas = {schema.value for schema in Schemas}
    attributes, metrics = constants("attributes"), constants("metrics")
    assert len(attributes) > 500 and len(metrics) > 100, (len(attributes), len(metrics))
    told = {"attribute": set(), "metric": set(), "resource attribute": set(), "schema": set()}
    with open(path, encoding="utf-8") as file:
        # The last line may not be whole.
        for line in (json.loads(line) for line in file if line.endswith("\n")):
            told["attribute"].update(line["attributes"])
            told["resource attribute"].update(line["resource"])
            told["schema"].update(line["schemas"])
            told["metric"].update({line["metric"]} if "metric" in line else ())
    known = {"attribute": attributes, "metric": metrics, "resource attribute": attributes, "schema": schemas}
    wrong = []
    for kind, names in told.items():
        assert names, f"no {kind} was told"
        foreign = {name for name in names if not name.startswith(OWN)}
        wrong += [f"{kind} {name}" for name in sorted(foreign - known[kind])]
        print(f"{kind}: {len(foreign & known[kind])} known, {len(names - foreign)} own")
    if wrong:
        sys.exit("no convention knows: " + ", ".join(wrong))
    if len(told["schema"]) != 1:
        sys.exit(f"one schema is to be named: {told['schema']}")


if __name__ == "__main__":
    main(sys.argv[1])
