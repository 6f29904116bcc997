"""The privacy audit: a planted copy is found, an overfitted network is caught, the page says so and asks nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from bench.test_report import Page
from protocore.bench.audit.measure import Audit, audit, most_alike
from protocore.bench.audit.page import page
from protocore.cli import main
from protocore.errors import UserError
from protocore.field.keeper import Keeper
from protocore.learn.front import nbytes
from protocore.learn.learner import Learner

NAMES = ("three", "eight", "nine")  # digits that are easily mistaken
SMALL = {"backbone": "mlp", "width": 64, "threads": 1, "lr": 0.01}


def write(folder: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / NAMES[label] / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Four digits a class that are learned, and all others, as picture files."""
    data = load_digits()
    images, labels = (data.images * 15.9).astype(np.uint8)[:, None], data.target
    mine = np.isin(labels, [3, 8, 9])
    images, labels = images[mine], np.searchsorted([3, 8, 9], labels[mine])
    learned = np.concatenate([np.flatnonzero(labels == c)[:4] for c in range(3)])
    rest = np.setdiff1d(np.arange(len(labels)), learned)
    root = tmp_path_factory.mktemp("pictures")
    return write(root / "learned", images[learned], labels[learned]), write(root / "others", images[rest], labels[rest])


def read(folder: Path) -> tuple[np.ndarray, list[str]]:
    files = sorted(folder.rglob("*.png"))
    return np.stack([np.asarray(Image.open(file, formats=["PNG"]))[None] for file in files]), \
        [file.parent.name for file in files]


def learner_file(path: Path, folder: Path, method: str = "er", **settings: object) -> Path:
    mine = Learner(method, (1, 8, 8), **{**SMALL, "steps": 200, **settings})  # type: ignore[arg-type]
    mine.partial_fit(*read(folder)).save(path)
    return path


@pytest.fixture(scope="module")
def overfitted(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learner_file(tmp_path_factory.mktemp("learner") / "digits.learner", folders[0], spc=2)


@pytest.fixture(scope="module")
def found(overfitted: Path, folders: tuple[Path, Path]) -> Audit:
    return audit(overfitted, *folders)[0]


def test_a_kept_picture_is_found_as_its_own_nearest_with_distance_0(found: Audit, overfitted: Path,
                                                                    folders: tuple[Path, Path]) -> None:
    (store,) = Learner.load(overfitted).method.stores()
    images, _ = read(folders[0])
    files = [file.relative_to(folders[0]).as_posix() for file in sorted(folders[0].rglob("*.png"))]
    assert len(found.exemplars) == 6
    for e in found.exemplars:
        original = files[int((images == store.images[e.slot].numpy()).all((1, 2, 3)).nonzero()[0][0])]
        assert e.distance == 0
        assert e.picture == original
        assert e.picture_by_features == original
        assert e.alike == pytest.approx(1, abs=1e-5)
    assert [one.copies for one in found.classes] == [2, 2, 2]
    gaps = np.sqrt(((images[:, None] / 255.0 - images[None] / 255.0) ** 2).mean((2, 3, 4)))
    np.fill_diagonal(gaps, np.inf)
    assert found.between == pytest.approx(np.median(gaps.min(1)), abs=1e-5)
    assert found.near == pytest.approx(np.quantile(gaps.min(1), 0.05), abs=1e-5)


def test_an_overfitted_network_gives_its_pictures_away_and_one_without_steps_does_not(
        found: Audit, folders: tuple[Path, Path], tmp_path: Path) -> None:
    assert found.by_loss is not None
    assert found.by_loss.auc > 0.8
    assert found.by_loss.told
    assert (found.training, found.held_out) == (12, found.by_loss.strangers)
    assert found.worst is not None
    assert found.worst.attack is not None
    assert all(abs((one.attack.auc if one.attack else 0.5) - 0.5) <= abs(found.worst.attack.auc - 0.5)
               for one in found.classes)
    fresh, _, _ = audit(learner_file(tmp_path / "fresh.learner", folders[0], spc=2, steps=1), *folders)
    assert fresh.by_loss is not None
    assert fresh.by_loss.auc < found.by_loss.auc - 0.1
    without, _, _ = audit(learner_file(tmp_path / "none.learner", folders[0], method="fecam", steps=1), *folders)
    assert not without.exemplars
    assert without.by_loss is not None


def test_compressed_pictures_are_near_their_originals_and_called_real(folders: tuple[Path, Path],
                                                                      tmp_path: Path) -> None:
    coded = learner_file(tmp_path / "coded.learner", folders[0], spc=2, codec="jpeg:60", replay_space="raw")
    result, about, training = audit(coded, folders[0])
    (store,) = about.learner.method.stores()
    exact = training.images.take(np.arange(len(training)))
    for e in result.exemplars:
        gaps = np.sqrt(((exact / 255.0 - store.images[e.slot].numpy() / 255.0) ** 2).mean((1, 2, 3)))
        assert e.distance == pytest.approx(gaps.min(), abs=1e-5)
        assert e.picture == training.files[int(gaps.argmin())]
        assert 0 < (e.distance or 0) < (result.between or 0)
    (part,) = [part for part in result.parts if part.personal == "pictures"]
    assert re.search(r"6 real pictures, compressed \(jpeg:60\), \d+ bytes each", part.words)
    assert result.by_loss is None
    assert "was not tested" in page(result, about, training)


def test_synthetic_pictures_are_called_blends(folders: tuple[Path, Path], tmp_path: Path) -> None:
    made = learner_file(tmp_path / "made.learner", folders[0], method="protocore", spc=1, codec="vqgan:1",
                        exemplars="synthetic", blend=4, condense_steps=2, steps=5)
    result, about, training = audit(made, folders[0])
    assert {e.origin for e in result.exemplars} == {"synthetic"}
    assert {part.personal for part in result.parts} == {"mixed", "none"}
    (part,) = [part for part in result.parts if "synthetic" in part.name]
    assert "a blend of 4 or more real pictures" in part.words
    text = page(result, about, training)
    assert "no trace that belongs to a single one" in text
    assert "exact copies" in text


def test_behind_a_frozen_network_rows_of_numbers_are_kept_and_compared_by_features(folders: tuple[Path, Path],
                                                                                   tmp_path: Path) -> None:
    frozen = learner_file(tmp_path / "frozen.learner", folders[0], spc=2, freeze="all")
    result, about, training = audit(frozen, *folders)
    images, _ = read(folders[0])
    (store,) = about.learner.method.stores()
    rows = about.learner.ready(images).mul(255).round().to(torch.uint8)
    for e in result.exemplars:
        (original,) = (rows == store.images[e.slot]).all(1).flatten().nonzero().flatten().tolist()
        assert (e.distance, e.picture) == (None, None)
        assert e.picture_by_features == training.files[original]
        assert e.alike == pytest.approx(1, abs=1e-3)
    assert result.between is None
    assert next(part.personal for part in result.parts) == "traces"
    assert next(part.bytes for part in result.parts if part.name == "network") == \
        nbytes(about.learner.net) + nbytes(about.learner.front)
    text = page(result, about, training)
    assert "6 rows of numbers" in text
    assert "holds no picture to look at" in text
    assert len(Page(text).of("img")) == 6  # the nearest training pictures


def test_what_is_most_alike() -> None:
    z = torch.nn.functional.normalize(torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    alike, which = most_alike(z[[4, 9]], z)
    assert which.tolist() == [4, 9]
    assert alike.tolist() == pytest.approx([1, 1])
    alike, which = most_alike(z[:3], z[3:])
    assert which.tolist() == [int((z[3:] @ z[i]).argmax()) for i in range(3)]


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_asks_for_nothing_and_says_it_in_words(overfitted: Path, folders: tuple[Path, Path]) -> None:
    result, about, training = audit(overfitted, *folders)
    text = page(result, about, training)
    made = Page(text)
    ids = [a["id"] for _, a in made.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in made.of("a")} <= set(ids)
    assert not made.of("script")
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)
    assert "http" not in re.sub(r"<meta http-equiv=", "", text)
    policy = next(a["content"] for a in made.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert len(made.of("img")) == 12  # two of each class, beside their originals
    assert all(a["src"].startswith("data:image/png") and a["alt"] for a in made.of("img"))
    for words in ("Privacy audit of digits.learner", "The file holds real pictures", "6 exact copies", result.sha256,
                  "more than chance explains", "AUC 0.", "whoever can ask it", "lower bound"):
        assert words.lower() in text.lower(), words


def test_names_of_files_and_classes_cannot_break_out(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 1, 8, 8), dtype=np.uint8)
    name = "<b onload=x>&"
    mine = Learner("er", (1, 8, 8), **SMALL, spc=2, steps=2)  # type: ignore[arg-type]
    mine.partial_fit(images, [name, "plain"] * 4).save(tmp_path / "odd.learner")
    for i, image in enumerate(images):
        path = tmp_path / "pictures" / (name, "plain")[i % 2] / f"<i>{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)
    text = page(*audit(tmp_path / "odd.learner", tmp_path / "pictures"))
    Page(text)
    assert name not in text
    assert "<i>" not in text
    assert "&lt;b onload=x&gt;&amp;" in text


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_every_number(overfitted: Path, folders: tuple[Path, Path], tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.html"
    words = ["audit", str(overfitted), str(folders[0]), "--held-out", str(folders[1]), "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "The file holds real pictures" in said
    assert "one can guess better than by chance" in said
    assert "<!DOCTYPE html>" in out.read_text()
    assert main([*words, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["by_loss"]["auc"] > 0.8
    assert len(numbers["exemplars"]) == 6
    assert numbers["worst_class"] in NAMES


def test_mistakes_are_named(overfitted: Path, folders: tuple[Path, Path], tmp_path: Path,
                            capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "strange" / "horse").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "strange" / "horse" / "1.png")
    for words, parts in (
        ([str(folders[0]), str(folders[0])], ["not a readable", "learned"]),
        ([str(overfitted), str(tmp_path / "none")], ["none", "no such file or folder"]),
        ([str(overfitted), str(tmp_path / "strange")], ["strange", "three"]),
        ([str(overfitted), str(folders[0]), "--held-out", str(folders[0])], ["all of its pictures were learned"]),
        ([str(overfitted), str(folders[0]), "--out", str(tmp_path)], ["--out", "folder"]),
        ([str(overfitted), str(folders[0]), "--out", "audit.txt"], ["--out audit.txt", ".html"]),
    ):
        assert main(["audit", *words, "--quiet"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("protocore: ")
        assert any(part in error for part in parts), error


def test_a_file_of_the_field_knows_which_pictures_it_learned(folders: tuple[Path, Path], tmp_path: Path) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", method="er", backbone="mlp", width=16, image_size=8, budget="16KB",
                        steps=20, codec="pixels", threads=1, augment="none")
    with pytest.raises(UserError, match="has learned no class"):
        audit(keeper.path, folders[0])
    keeper.learn([folders[0]])
    result, about, training = audit(keeper.path, *folders)
    assert result.fingerprints == 12
    assert [part.name for part in result.parts][-2:] == ["fingerprints", "history"]
    assert all(e.distance == 0 for e in result.exemplars)
    assert "can tell so for certain" in page(result, about, training)
    with pytest.raises(UserError, match=r"others: none of its pictures was learned by .*mine\.learner"):
        audit(keeper.path, folders[1])
    certificate = keeper.forget("nine")
    assert certificate.found == 0
    assert certificate.file_before == result.sha256
    assert certificate.file_after == audit(keeper.path, folders[0])[0].sha256
