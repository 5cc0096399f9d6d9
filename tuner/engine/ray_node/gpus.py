"""Restrict the GPUs that a process of Ray sees."""

import os

import ray


def hide_those_of_others() -> None:
    """Hide all GPUs from an actor that requested none. Call it in the actor before anything looks for a GPU.

    Ray (2.60) sets the visible GPUs of an actor that requested some, but leaves all GPUs of the machine to an actor
    that requested none. Its user code would then train on a GPU that it does not pay for, and use the memory of those
    who do.
    """
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
