"""The stages of a job: its plan, with the arrays that they copy between. Layer: above storage, below the job."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rechunk_exec import storage
from rechunk_exec.errors import PlanError
from rechunk_exec.plans import Plan
from rechunk_exec.tasks import ArrayRef, Stage


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """Where the arrays of a job are."""

    source: ArrayRef
    target: ArrayRef
    temp: ArrayRef | None
    """The folder of the intermediates; None if there is no place for one."""
    temp_store: ArrayRef | None = None
    """What was given to hold that folder, if anything was."""

    @property
    def journalled(self) -> bool:
        """Whether the target's store holds a journal."""
        return storage.holds_documents(self.target)

    def with_temp(self, name: str) -> JobPlaces:
        """Return these, with the folder of intermediates of this name."""
        return replace(self, temp=storage.temp_place(self.target, self.temp_store, name))

    def needed_temp(self, plan: Plan) -> ArrayRef:
        """Return the folder of the intermediates.

        Raises
        ------
        PlanError
            If there is no place for it.
        """
        if self.temp is None:
            raise PlanError(
                f"the plan needs a temp store of {plan.temp_bytes} bytes, and there is no place for one beside the "
                f"target {self.target}; give temp_store, or more max_mem"
            )
        return self.temp


def intermediates(plan: Plan) -> tuple[str, ...]:
    """Return the names of a plan's intermediates."""
    return tuple(stage.target for stage in plan.stages if stage.target != "target")


def stages_of(
    plan: Plan, places: JobPlaces, *, job: str, journal: ArrayRef | None, digest: bool = False
) -> tuple[Stage, ...]:
    """Return the stages of a job, whole; each intermediate is in the folder of the intermediates, under its name.

    Raises
    ------
    PlanError
        If there are intermediates, and no place for them.
    """
    refs = {"source": places.source, "target": places.target}
    refs |= {name: storage.intermediate_place(places.needed_temp(plan), name) for name in intermediates(plan)}
    return tuple(
        Stage(
            number=number,
            plan=stage,
            source=refs[stage.source],
            target=refs[stage.target],
            job=job,
            journal=journal,
            digest=digest,
        )
        for number, stage in enumerate(plan.stages)
    )
