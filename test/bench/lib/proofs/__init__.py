"""What is shown with a verdict: a proof is a module here with prove(bed, o), which answers its Verdicts; its first line is what it shows."""

import importlib

NAMES = ("flow", "queues", "kills", "neighbours", "killers", "outages", "versions", "days", "relay", "retention", "order", "batch")


def load(name):
    return importlib.import_module(f"lib.proofs.{name}")
