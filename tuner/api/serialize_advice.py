"""Advice, converted to its REST model."""

from fractions import Fraction
from typing import Any

from tuner.domain.money import Money
from tuner.domain.time import NS
from tuner.domain.usage import Usage
from tuner.schemas import advice as show
from tuner.schemas import answers as shown
from tuner.service.advice import AdviceView, Change, Figure, Finding, Missing


def advice_of(view: AdviceView) -> show.Advice:
    return show.Advice(
        job=view.job.id,
        state=view.job.state,
        spent_usd=view.spent.usd,
        measured_usd=view.measured.usd,
        findings=[_finding(one) for one in view.findings],
        not_measured=[_missing(one) for one in view.missing],
        prices=view.catalogue,
        prices_age=view.catalogue_age,
    )


def usage_of(used: Usage) -> shown.AttemptUsage:
    return shown.AttemptUsage(
        wall_seconds=_seconds(used.wall_ns),
        cpu_seconds=_seconds(used.cpu_ns),
        memory_peak_bytes=used.memory_peak_bytes,
        gpu_samples=used.gpu_samples,
        gpu_percent_sum=used.gpu_percent,
        gpu_memory_peak_bytes=used.gpu_memory_peak_bytes,
        data_wait_seconds=_seconds(used.data_wait_ns),
        compute_seconds=_seconds(used.compute_ns),
        saves=used.saves,
        saved_bytes=used.saved_bytes,
        facts=dict(used.facts),
    )


def _finding(one: Finding) -> show.Finding:
    return show.Finding(
        kind=one.kind,
        title=one.title,
        confidence=one.confidence,
        evidence={name: _figure(value) for name, value in one.evidence.items()},
        change=_change(one.change),
        alternatives=[_change(other) for other in one.alternatives],
        saves_usd=None if one.saves is None else one.saves.usd,
        saves_note=one.saves_note,
        verify=one.verify,
    )


def _change(one: Change) -> show.Change:
    return show.Change(setting=one.setting, now=one.now, then=one.then, how=one.how)


def _missing(one: Missing) -> show.NotMeasured:
    return show.NotMeasured(what=one.what, why=one.why, how=one.how)


def _figure(value: Figure) -> Any:
    """Return a value of a finding's evidence for JSON: money as dollars, and a fraction rounded to six decimals."""
    if isinstance(value, Money):
        return value.usd
    return round(float(value), 6) if isinstance(value, Fraction) else value


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / NS, 6)
