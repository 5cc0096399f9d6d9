"""Which GPUs a process of Ray's may see."""

import os

import ray


def hide_those_of_others() -> None:
    """To be called in an actor before anything looks for a GPU.

    Ray (2.60) names the GPUs of an actor that asked for some, and leaves all of the machine's to one that asked for none: what
    that starts would train on a GPU that nobody pays for, and take the memory of those who do.
    """
    if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
