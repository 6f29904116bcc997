"""What the API says, as its OpenAPI document describes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """Why something was refused."""

    detail: str


class Kind(BaseModel):
    """A class of the learner, or one that is to become one."""

    name: str
    since: str | None = Field(None, description="When it was first learned (UTC); null: its pictures still wait.")
    pictures: int = Field(0, description="Pictures that were learned of it.")
    weak: bool = Field(False, description="Learned from so few that more are wanted.")
    exemplars: int = Field(0, description="How many exemplars the memory keeps of it.")
    remembered: int = Field(0, description="How many of them are pictures that can be fetched, numbered from 0.")
    waiting: int = Field(description="Pictures that wait to be learned.")
    forgetting: bool = Field(description="It is about to be forgotten.")


class Work(BaseModel):
    """A job: `learn` what waits, or `forget` a class."""

    id: str
    job: Literal["learn", "forget"]
    name: str = Field(description="The class that is forgotten; empty for `learn`.")
    when: str = Field(description="When it was asked for (UTC).")
    state: Literal["queued", "running", "done", "failed"]
    part: str = Field(description="What is going on, in words.")
    done: int = Field(description="How much of the part is done.")
    of: int = Field(description="How much there is; 0 where nothing is known yet.")
    notes: list[str]
    result: dict[str, Any] | None = Field(description="What `protocore learn --json` or `forget --json` says.")
    error: str | None = Field(description="Why it failed; its pictures wait again.")


class State(BaseModel):
    """The learner's file, what waits, and the jobs."""

    file: str = Field(description="The file's name.")
    version: str = Field(description="Another one means that the file has changed.")
    method: str | None = Field(description="null: nothing was learned yet.")
    backbone: str | None
    image_size: int | None = Field(description="Side in pixels that pictures are scaled to.")
    choice: str = Field(description="Why network and method are what they are.")
    budget: int | None = Field(description="Bytes that the memory may have.")
    kept: int = Field(description="Bytes of it that are used.")
    network: int = Field(description="Bytes of the network, which the budget does not count.")
    file_bytes: int
    rejects: bool = Field(description="Whether `unknown=0.05` can be promised: enough pictures were held out.")
    classes: list[Kind]
    jobs: list[Work] = Field(description="Those that run or wait, and the last ones that are over; oldest first.")
    most_bytes: int = Field(description="Bytes that one picture may have.")


class Added(BaseModel):
    """A picture came in."""

    added: bool = Field(description="false: it waits already.")
    waiting: int = Field(description="Pictures of this class that wait now.")


class Dropped(BaseModel):
    """Pictures that do not wait any more."""

    dropped: int


class Chance(BaseModel):
    name: str
    probability: float


class Answer(BaseModel):
    """The most likely classes, most likely first."""

    classes: list[Chance]
    unknown: bool = Field(description="None of them, by the rate of false alarms that was asked for.")
