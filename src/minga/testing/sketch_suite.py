"""What every sketch must do, as checks to be run against what makes one.

    @pytest.mark.parametrize("check", SKETCH_CHECKS)
    def test_my_sketch(check):
        check(MySketch)

Each check raises `Violation` with what failed. All data come from fixed seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from blake3 import blake3

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Residuals
from minga.averaging.sketches.interface import Sketch
from minga.averaging.sketches.projection import Projection, RoundProjections
from minga.core.errors import ConfigurationError
from minga.testing.other_process import can_be_imported, said_elsewhere
from minga.testing.violation import Violation, require

MakeSketch = Callable[[VectorLayout], Sketch]

_ROUNDS: Final = 50
_WHOLES: Final = (
    VectorLayout(((12, 20), (7,), (), (3, 4, 5), (30, 9)), "float32"),
    VectorLayout((5,), "float32"),
    VectorLayout(((40, 40),), "float16"),
)


def _normal(whole: VectorLayout, seed: int) -> torch.Tensor:
    return torch.randn(whole.total, generator=torch.Generator().manual_seed(seed))


def _rounds(make: MakeSketch) -> Iterator[tuple[Sketch, int]]:
    """Sketches of several layouts before each of their first rounds, with bases that move."""
    for whole in _WHOLES:
        sketch = make(whole)
        for step in range(6):
            yield sketch, step
            sketch.absorb(sketch.project(_normal(whole, 1000 + step), step), step)


def _distance(one: torch.Tensor, other: torch.Tensor, scale: float) -> float:
    return float((one.double() - other.double()).norm()) / max(scale, 1e-30)


def check_layouts(make: MakeSketch) -> None:
    """The layout of a round is a function of the step, differs from that of other shapes, and fits the values."""
    for sketch, step in _rounds(make):
        layout = sketch.layout(step)
        require(layout == make(sketch.whole).layout(step), sketch, f"step {step}: another instance has another layout")
        values = sketch.project(_normal(sketch.whole, step), step)
        fits = values.shape == (layout.total,) and values.dtype == torch.float32 and values.is_contiguous()
        require(fits, sketch, f"step {step}: the values do not fit the layout: {tuple(values.shape)}, {values.dtype}")
        back = sketch.expand(values, step)
        fits = back.shape == (sketch.whole.total,) and back.dtype == torch.float32 and back.is_contiguous()
        require(fits, sketch, f"step {step}: what is expanded does not fit the vector: {tuple(back.shape)}")
    one, other = (make(VectorLayout(((rows, 36 // rows),), "float32")) for rows in (4, 9))
    differ = one.is_identity or one.layout(0).fingerprint != other.layout(0).fingerprint
    require(differ, one, "matrices of other shapes have layouts that cannot be told apart")


def check_purity(make: MakeSketch) -> None:
    """`project` and `expand` leave what they are given as it is, and give the same again, also on another instance."""
    for sketch, step in _rounds(make):
        vector = _normal(sketch.whole, step)
        values = sketch.project(vector, step)
        require(torch.equal(vector, _normal(sketch.whole, step)), sketch, "project changed the vector")
        kept = values.clone()
        back = sketch.expand(values, step)
        require(torch.equal(values, kept), sketch, "expand changed the values")
        require(torch.equal(sketch.project(vector, step), kept), sketch, "project gave other values the second time")
        require(torch.equal(sketch.expand(kept, step), back), sketch, "expand gave another vector the second time")


def check_linear(make: MakeSketch) -> None:
    """The image of a sum is the sum of the images: only so the mean of images is the image of the mean."""
    for sketch, step in _rounds(make):
        one, other = _normal(sketch.whole, 2 * step), _normal(sketch.whole, 2 * step + 1)
        whole = sketch.project(0.25 * one - 3 * other, step)
        parts = 0.25 * sketch.project(one, step) - 3 * sketch.project(other, step)
        require(_distance(whole, parts, float(parts.norm())) < 1e-5, sketch, f"step {step}: project is not linear")
        whole = sketch.expand(whole, step)
        parts = 0.25 * _image(sketch, one, step) - 3 * _image(sketch, other, step)
        require(_distance(whole, parts, float(parts.norm())) < 1e-5, sketch, f"step {step}: expand is not linear")
        zeros = sketch.expand(sketch.project(torch.zeros(sketch.whole.total), step), step)
        require(not zeros.any(), sketch, f"step {step}: zeros do not stay zeros")


def check_projection(make: MakeSketch) -> None:
    """Projecting and expanding twice is as once, and what is left out is at right angles to what is not."""
    for sketch, step in _rounds(make):
        vector = _normal(sketch.whole, step)
        image = _image(sketch, vector, step)
        again, length = _image(sketch, image, step), float(vector.norm())
        require(_distance(again, image, length) < 1e-5, sketch, f"step {step}: twice is not as once")
        longer = float(image.double().norm()) > length * (1 + 1e-5)
        require(not longer, sketch, f"step {step}: the image is longer than the vector")
        overlap = float(image.double() @ (vector - image).double())
        require(abs(overlap) < 1e-5 * length**2, sketch, f"step {step}: what is left out overlaps with what is not")


def check_basis(make: MakeSketch) -> None:
    """After 50 rounds all peers have the same basis to the last bit, also one that took it over in the middle."""
    for whole in _WHOLES:
        peers = [make(whole), make(whole)]
        for step in range(_ROUNDS):
            if step == _ROUNDS // 2:
                newcomer = make(whole)
                for name, tensor in newcomer.basis().items():
                    tensor.copy_(peers[0].basis()[name])
                peers.append(newcomer)
            tensors = peers[0].basis()
            mean = peers[0].project(_normal(whole, step), step)
            for peer in peers:
                images = torch.equal(peer.expand(mean, step), peers[0].expand(mean, step))
                require(images, peer, f"step {step}: two peers expand a mean differently")
            for peer in peers:
                peer.absorb(mean, step)
            same = peers[0].basis()
            require(
                all(same[name] is tensor for name, tensor in tensors.items()),
                peers[0],
                "absorb put other tensors in the place of the basis; it has to change them in place",
            )
        for peer in peers[1:]:
            require(peer.basis().keys() == peers[0].basis().keys(), peer, "two peers have bases of other names")
            for name, tensor in peer.basis().items():
                equal = torch.equal(tensor, peers[0].basis()[name]) and bool(tensor.isfinite().all())
                require(equal, peer, f"{name} of the basis differs between peers, or is not finite")


def check_conservation(make: MakeSketch) -> None:
    """Of one peer alone: what rounds applied and what it still holds back is what it contributed, weights included.

    Every other round comes to nothing first. Half of these have a result after all, which the next one adopts. Then
    what it contributed is the first, if its strategy keeps the rest, and else the last.
    """
    for number, whole in enumerate(_WHOLES):
        keeps = number % 2 == 1
        projection = Projection(make(whole), Residuals(keeps_uncounted=keeps))
        given, applied = torch.zeros(whole.total, dtype=torch.float64), torch.zeros(whole.total, dtype=torch.float64)
        for step in range(_ROUNDS):
            brought: list[torch.Tensor] = []
            sent: list[tuple[int, torch.Tensor]] = []
            for attempt in range(1 + step % 2):
                weight, vector = 1 + (step + attempt) * 7 % 64, _normal(whole, step + 100 * attempt)
                values = projection.contribution(vector, weight, step, f"round {attempt}")
                if values is None:
                    raise Violation(f"{projection.sketch.name}: step {step}: an ordinary vector was left out")
                brought.append(weight * vector.double())
                sent.append((weight, values))
            adopted = 0 if step % 4 == 1 and projection.sketch.needs_residual else len(sent) - 1
            given += brought[adopted if keeps else -1]
            mean = projection.absorb(sent[adopted][1], step, counted_in=f"round {adopted}")
            applied += sent[adopted][0] * mean.double()
        rest = given - applied - projection.residual.mass.double()
        held = float(rest.norm()) <= 1e-5 * float(given.norm())
        require(held, projection.sketch, "what was left out does not add up")


def check_conservation_among_peers(make: MakeSketch) -> None:
    """Of peers that come, go and die: what 200 rounds applied and what they hold back is what all of them contributed.

    Weights differ. A peer may have no part in a round, give only to its first attempt, or not be counted. What the
    dead held back is lost with them, and nothing else is.
    """
    for whole in _WHOLES[::2]:
        if not make(whole).needs_residual:
            continue  # it holds nothing back
        chance = random.Random(7)
        peers = [Projection(make(whole)) for _ in range(4)]
        given, applied, lost = torch.zeros(3, whole.total, dtype=torch.float64)
        for step in range(4 * _ROUNDS):
            if step % 23 == 22:  # one dies, and a newcomer takes over the basis of another
                lost += peers.pop(chance.randrange(len(peers))).residual.mass
                peers.append(Projection(make(whole)))
                for name, tensor in peers[-1].sketch.basis().items():
                    tensor.copy_(peers[0].sketch.basis()[name])
            fates: dict[Projection, str | None] = {}
            masses, samples = [], 0
            for number, peer in enumerate(peers):
                fates[peer] = None
                if chance.random() < 0.2:
                    peer.contribution(None, 0, step, "the round")
                    continue
                weight, vector = chance.randint(1, 64), _normal(whole, 10 * step + number)
                values = peer.contribution(vector, weight, step, "the round")
                if values is None:
                    raise Violation(f"{peer.sketch.name}: step {step}: an ordinary vector was left out")
                given += weight * vector.double()
                if number == 0 or chance.random() < 0.8:
                    fates[peer] = "the round"
                    masses.append(values.double() * weight)
                    samples += weight
            if not samples:
                masses, samples = [torch.zeros(peers[0].layout_of(step).total, dtype=torch.float64)], 1
            mean = (torch.stack(masses).sum(0) / samples).float()
            images = [peer.absorb(mean, step, counted_in=fate) for peer, fate in fates.items()]
            require(all(torch.equal(each, images[0]) for each in images), peers[0].sketch, "peers expand differently")
            applied += samples * images[0].double()
        held = sum((peer.residual.mass.double() for peer in peers), torch.zeros(whole.total, dtype=torch.float64))
        rest = float((given - applied - held - lost).norm())
        require(rest <= 1e-5 * float(given.norm()), peers[0].sketch, "what peers left out does not add up")


def check_fragments(make: MakeSketch) -> None:
    """Restricted to fragments that take turns, it keeps what it promises, with the one basis of the whole vector.

    A sketch with a basis may refuse that instead, by `ConfigurationError`.
    """
    whole = _WHOLES[0]
    places = ((0, 2, 4), (1, 3))
    fragments = [
        replace(whole, tensors=tuple(whole.shapes[place] for place in each), label=f"fragment {number}")
        for number, each in enumerate(places)
    ]
    peers = [RoundProjections(make(whole)) for _ in range(2)]
    try:
        for peer in peers:
            peer.divide(fragments, places)
    except ConfigurationError as error:
        require(bool(peers[0].sketch.basis()), peers[0].sketch, f"it has no basis, and refuses fragments: {error}")
        return
    given, applied = ([torch.zeros(each.total, dtype=torch.float64) for each in fragments] for _ in range(2))
    for step in range(_ROUNDS):
        turn = step % 2
        vector = _normal(fragments[turn], step)
        values = peers[0].contribution(vector, 2, step, "a round")
        if values is None:
            raise Violation(f"{peers[0].sketch.name}: step {step}: an ordinary vector was left out")
        fits = values.shape == (peers[0].layout_of(step).total,)
        require(fits, peers[0].sketch, f"step {step}: the values of a fragment do not fit to their layout")
        given[turn] += 2 * vector.double()
        images = [peer.absorb(values, step, counted_in="a round" if peer is peers[0] else None) for peer in peers]
        require(torch.equal(*images), peers[0].sketch, f"step {step}: two peers expand a fragment differently")
        applied[turn] += 2 * images[0].double()
    total = torch.cat(given)
    rest = float((total - torch.cat(applied)).sub(peers[0].masses if peers[0].sketch.needs_residual else 0).norm())
    require(rest <= 1e-5 * float(total.norm()), peers[0].sketch, "what fragments left out does not add up")
    for name, tensor in peers[0].sketch.basis().items():
        equal = torch.equal(tensor, peers[1].sketch.basis()[name])
        require(equal, peers[0].sketch, f"{name} of the basis differs between peers whose fragments take turns")


def check_hard_vectors(make: MakeSketch) -> None:
    """Zeros, equal columns, one element alone, one that is huge among others, and magnitudes from the smallest to 2**90
    stay finite in all rounds.
    """
    for whole in _WHOLES:
        alone = torch.zeros(whole.total)
        alone[-1] = 1.0
        hard = [
            torch.zeros(whole.total),
            torch.ones(whole.total),
            alone,
            alone * 2.0**90,
            _normal(whole, 4) + alone * 2.0**60,
        ]
        hard += [_normal(whole, 3) * scale for scale in (2.0**-140, 2.0**-100, 2.0**80)]
        sketch = make(whole)
        for step, vector in enumerate(hard * 2):
            values = sketch.project(vector, step)
            image = sketch.expand(values, step)
            finite = bool(values.isfinite().all() and image.isfinite().all())
            require(finite, sketch, f"step {step}: a finite vector has an image that is not")
            longer = float(image.double().norm()) > float(vector.double().norm()) * (1 + 1e-5) + 1e-40
            require(not longer, sketch, f"step {step}: the image is longer than the vector")
            sketch.absorb(values, step)
            basis_is_finite = all(bool(tensor.isfinite().all()) for tensor in sketch.basis().values())
            require(basis_is_finite, sketch, f"step {step}: the basis is not finite any more")


def check_lossless(make: MakeSketch) -> None:
    """A sketch that says so gives each vector back, but for rounding."""
    for sketch, step in _rounds(make):
        vector = _normal(sketch.whole, step)
        wrong = _distance(_image(sketch, vector, step), vector, float(vector.norm()))
        require(wrong < 1e-6 or sketch.needs_residual, sketch, f"step {step}: it loses {wrong:.1e} of a vector")


def check_residual_gets_through(make: MakeSketch) -> None:
    """With a vector that stays the same, all of it arrives sooner or later: nothing is left out for ever."""
    for whole in _WHOLES:
        projection, vector = Projection(make(whole)), _normal(whole, 5)
        applied = torch.zeros(whole.total, dtype=torch.float64)
        for step in range(2 * _ROUNDS):
            values = projection.contribution(vector, 8, step, "a round")
            if values is not None:
                applied += projection.absorb(values, step, counted_in="a round").double()
        wrong = _distance(applied / (2 * _ROUNDS), vector, float(vector.norm()))
        require(wrong < 0.35, projection.sketch, f"{wrong:.0%} of a vector that stays the same never arrives")


def check_processes(make: MakeSketch, *others: MakeSketch) -> None:
    """Another process, with another number of threads and other seeds, has the same images and bases; it may check
    several sketches. Of one that it cannot import, because a function made the class, nothing is checked.
    """
    makers: list[Any] = [each for each in (make, *others) if can_be_imported(each)]
    words = [word for each in makers for word in (each.__module__, each.__qualname__)]
    found = said_elsewhere(_ELSEWHERE, *words) if words else []
    for each, digest in zip(makers, found, strict=True):
        same = digest == digest_of_rounds(each)
        require(same, each(_WHOLES[0]), "another process has other images, or another basis")


_ELSEWHERE: Final = """
from minga.testing.sketch_suite import digest_of_rounds
for module, name in zip(*[iter(words)] * 2):
    say(digest_of_rounds(find(module, name)))
"""


def digest_of_rounds(make: MakeSketch) -> str:
    """A digest of what the sketch makes of vectors of whole numbers, which have the same bits on all machines."""
    digest = blake3()
    for sketch in map(make, _WHOLES):
        for step in range(6):
            chance = torch.Generator().manual_seed(step)
            values = sketch.project(torch.randint(-999, 1000, (sketch.whole.total,), generator=chance).float(), step)
            back = sketch.expand(values, step)
            sketch.absorb(values, step)
            for tensor in (values, back, *sketch.basis().values()):
                digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_facts(make: MakeSketch) -> None:
    """The name and the version are such as runs can have, and the identity says that it is one."""
    sketch = make(_WHOLES[0])
    require(isinstance(sketch.version, int) and sketch.version >= 1, sketch, f"version {sketch.version!r}")
    vector = _normal(sketch.whole, 1)
    values = sketch.project(vector, 0)
    require(sketch.is_identity == (values is vector), sketch, f"is_identity is {sketch.is_identity}")
    require(not (sketch.needs_residual and sketch.is_identity), sketch, "it is the identity, and needs a residual")
    tensors = sketch.basis().values()
    fits = all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors)
    require(fits, sketch, "the basis is to be of CPU tensors without gradients")


def _image(sketch: Sketch, vector: torch.Tensor, step: int) -> torch.Tensor:
    return sketch.expand(sketch.project(vector, step), step)


SKETCH_CHECKS: Final[tuple[Callable[[MakeSketch], None], ...]] = (
    check_layouts,
    check_purity,
    check_linear,
    check_projection,
    check_basis,
    check_conservation,
    check_conservation_among_peers,
    check_fragments,
    check_lossless,
    check_hard_vectors,
    check_residual_gets_through,
    check_facts,
    check_processes,
)
"""All checks, each taking what makes a sketch and raising `Violation` if it fails."""


def check_sketch(make: MakeSketch) -> None:
    """Run every check in turn. Raises the first failure."""
    for check in SKETCH_CHECKS:
        check(make)
