"""Networks that other packages bring: vision models of transformers (`hf:`) and of timm (`timm:`)."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protocore.errors import DataError, UserError, shown
from protocore.files import read_json
from protocore.pictures import ImageShape

USUAL = 224  # pixels of a side, where nobody says
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MOST = 20_000  # of any number in the configuration of a stranger's file
_PREPROCESSOR = "preprocessor_config.json"


class Brought(nn.Module):
    """A model of another package: pictures, normalised and sized as it says, to one vector each.

    `record` is what builds it again without the place that it came from; its weights are then in a learner's file.
    """

    def __init__(self, title: str, model: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], side: int,
                 record: Mapping[str, Any]) -> None:
        super().__init__()
        names = [name for name, _ in model.named_parameters()]
        self.first = any(name.endswith(("cls_token", "class_embedding")) for name in names)
        if self.first and isinstance(getattr(model, "pooler", None), nn.Module):
            model.pooler = None  # type: ignore[assignment]  # often never trained: the class token is taken as it is
        self.title, self.model, self.record = title, model, record
        self.mean, self.std, self.image_size, self.native = mean, std, (side, side), side
        self.stretches = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters

    def features(self, x: Tensor) -> Any:
        more = {"interpolate_pos_encoding": True} if self.stretches and x.shape[-1] != self.native else {}
        found = self.model(x, **more)
        last = getattr(found, "last_hidden_state", None)
        if not isinstance(last, Tensor):
            return found
        if last.ndim == 3:  # tokens: that of the class, or their mean
            return last[:, 0] if self.first else last.mean(1)
        pooled = getattr(found, "pooler_output", None)  # a map: its mean as the model makes it
        return pooled.flatten(1) if isinstance(pooled, Tensor) else last


# -- transformers ------------------------------------------------------------------------------------------------------


def hf_side(source: str) -> int:
    """The side of the pictures that a model was trained for."""
    with _of_transformers(source) as transformers:
        return _about(transformers, source)[-1]


def hf_model(source: str, *, trained: bool) -> Brought:
    """A model of a folder or of the hub; its own code is never run, and its weights are read from safetensors only."""
    local = _is_folder(source)
    with _of_transformers(source) as transformers:
        config, mean, std, side = _about(transformers, source)
        if trained:
            model, found = transformers.AutoModel.from_pretrained(
                source, config=config, trust_remote_code=False, local_files_only=local, use_safetensors=True,
                output_loading_info=True)
            if missing := sorted(name for name in found["missing_keys"] if "pooler" not in name):
                raise DataError(f"--backbone hf:{source}: its file has no weights for {shown(missing[0])}")
        else:
            model = transformers.AutoModel.from_config(config, trust_remote_code=False)
    seen = getattr(config, "vision_config", config).to_dict()
    record = {"config": seen, "mean": list(mean), "std": list(std), "side": side}
    return Brought(f"hf:{source}", _seeing(model), mean, std, side, record)


def of_record(record: Mapping[str, Any], name: str, most: int, image_size: int | None) -> Brought:
    """The model of a learner's file, whose weights come from there: they have at most so many numbers."""
    with _of_transformers(name.removeprefix("hf:")) as transformers:
        try:
            _check_numbers(record)
            told = {key: value for key, value in record["config"].items() if key != "auto_map"}
            config = transformers.AutoConfig.for_model(**told)
            with torch.device("meta"):
                sketch = transformers.AutoModel.from_config(config, trust_remote_code=False)
            if sum(p.numel() for p in _seeing(sketch).parameters()) > 2 * most:
                raise ValueError("the network is larger than its weights")
            model = transformers.AutoModel.from_config(config, trust_remote_code=False)
            mean, std, side = tuple(record["mean"]), tuple(record["std"]), int(record["side"])
            made = Brought(name, _seeing(model), mean, std, side, record)
        except Exception as error:  # of the library, for a configuration that is none
            raise DataError(f"{name}: what the file says of its network is damaged ({_first_line(error)}); restore the "
                            "file from a copy") from None
    if image_size is not None:
        made.image_size = image_size, image_size
    return made


def _seeing(model: nn.Module) -> nn.Module:
    """The part of a model of pictures and texts that sees."""
    return getattr(model, "vision_model", model).float()


def _about(transformers: Any, source: str) -> tuple[Any, tuple[float, ...], tuple[float, ...], int]:
    """Configuration, mean, deviation and side."""
    local = _is_folder(source)
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=local)
    path = Path(source) / _PREPROCESSOR if local else transformers.utils.cached_file(
        source, _PREPROCESSOR, _raise_exceptions_for_missing_entries=False)
    told = read_json(Path(path)) if path is not None and Path(path).is_file() else {}
    told = told if isinstance(told, dict) else {}
    sees = getattr(config, "vision_config", config)
    side = _side(told.get("crop_size")) or _side(told.get("size")) or _side(getattr(sees, "image_size", None)) or USUAL
    mean, std = _values(told.get("image_mean"), IMAGENET[0]), _values(told.get("image_std"), IMAGENET[1])
    return config, mean, std, side


def _side(told: Any) -> int | None:
    """Of the forms in which models say it: a number, two of them, or a table."""
    if isinstance(told, Mapping):
        told = next((told[key] for key in ("height", "shortest_edge") if key in told), None)
    if isinstance(told, list | tuple) and told:
        told = told[0]
    return told if type(told) is int and 0 < told <= 4096 else None


def _values(told: Any, usual: tuple[float, ...]) -> tuple[float, ...]:
    if isinstance(told, list) and len(told) == 3 and all(isinstance(one, int | float) for one in told):
        return tuple(float(one) for one in told)
    return usual


def _is_folder(source: str) -> bool:
    return Path(source).expanduser().is_dir()


@contextlib.contextmanager
def _of_transformers(source: str) -> Iterator[Any]:
    """The library, saying nothing by itself; what goes wrong in it is told as a mistake of the name."""
    try:
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"--backbone hf:{source}: needs transformers ({error}); pip install 'protocore[hf]'") from None
    log = transformers.utils.logging
    before = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield transformers
    except UserError:
        raise
    except Exception as error:  # somebody else's library: anything can go wrong in it
        raise UserError(f"--backbone hf:{source}: cannot be used ({_first_line(error)}); give hf:FOLDER with "
                        "config.json and model.safetensors of a vision model, or the id of one on the hub") from None
    finally:
        log.set_verbosity(before)
        log.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return shown(next(iter(str(error).splitlines()), type(error).__name__), 300)


def _check_numbers(told: Any, depth: int = 0) -> None:
    if isinstance(told, Mapping | list) and depth < 8:
        for one in told.values() if isinstance(told, Mapping) else told:
            _check_numbers(one, depth + 1)
    elif isinstance(told, Mapping | list) or (isinstance(told, int) and abs(told) > MOST):
        raise ValueError(f"{shown(told)} is too much")


# -- timm --------------------------------------------------------------------------------------------------------------


def timm_side(name: str) -> int:
    _, cfg = _of_timm(name)
    return int(cfg.input_size[-1])


def timm_model(name: str, *, trained: bool) -> Brought:
    timm, cfg = _of_timm(name)
    try:
        model = timm.create_model(name, pretrained=trained, num_classes=0)
    except Exception as error:  # somebody else's library
        raise UserError(f"--backbone timm:{name}: cannot be made ({_first_line(error)}); see "
                        "timm.list_models(pretrained=True)") from None
    return Brought(f"timm:{name}", model, tuple(cfg.mean), tuple(cfg.std), int(cfg.input_size[-1]), {})


def _of_timm(name: str) -> tuple[Any, Any]:
    """The library, and what it knows of the model's input."""
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:  # a torchvision of another torch breaks as it is imported
        raise UserError(f"--backbone timm:{name}: timm cannot be imported ({shown(str(error), 200)}); it needs a "
                        "torchvision made for this torch: install both from one place, or take efficientnet-lite0 or "
                        "hf:FOLDER") from None
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None:
        from protocore.registry import near

        meant = near(name, timm.list_models(pretrained=True))
        raise UserError(f"--backbone timm:{name}: timm has no trained model of this name"
                        f"{f'; did you mean timm:{meant}?' if meant else ''}")
    return timm, cfg


def brought(kind: str, source: str, shape: ImageShape, width: int | None, norm: str | None, *,
            trained: bool) -> Brought:
    """What `hf:` and `timm:` stand for."""
    if width is not None or norm is not None:
        raise UserError(f"--backbone {kind}:{source}: was trained with its own width and norm; leave --width, --norm "
                        "out")
    return (hf_model if kind == "hf" else timm_model)(source, trained=trained)
