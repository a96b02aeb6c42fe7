"""monitoring.py PORT up | dashboard FILE: asks a Prometheus; each expression of a Grafana dashboard must have values."""

import json
import sys
from urllib.parse import urlencode
from urllib.request import urlopen


def query(port, expr):
    with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': expr})}") as answer:
        return json.load(answer)["data"]["result"]


def main(port, what, *files):
    if what == "up":
        sys.exit(0 if any(result["value"][1] == "1" for result in query(port, "up")) else 1)
    with open(files[0]) as file:
        panels = json.load(file)["panels"]
    for panel in panels:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            values = [float(result["value"][1]) for result in query(port, expr)]
            print(f"{panel['title']}: {', '.join(f'{value:.3g}' for value in values)}")
            # A share of nothing is NaN, which is not above 0 either.
            if not any(value > 0 for value in values):
                sys.exit(f"no value above 0: {expr}")


main(*sys.argv[1:])
