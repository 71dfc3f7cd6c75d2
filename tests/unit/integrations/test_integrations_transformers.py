"""The callback in a real Trainer: a small GPT-2 on random tokens."""

import copy

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from kilolayer.integrations.transformers import LossReader, MonitorCallback
from kilolayer.recording import Recording


class Tokens(torch.utils.data.Dataset):
    def __init__(self, size=48):
        self.ids = torch.randint(0, 50, (size, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def build():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50,
        n_embd=16,
        n_layer=3,
        n_head=2,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    return GPT2LMHeadModel(config)


def arguments(folder, **options):
    defaults = {
        "output_dir": str(folder / "trainer"),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "report_to": [],
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return TrainingArguments(**defaults | options)


def train(folder, *callbacks, model=None, resume=None, **options):
    model = build() if model is None else model
    trainer = Trainer(
        model, arguments(folder, **options), train_dataset=Tokens(), eval_dataset=Tokens(8), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


VARIANTS = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 3, "bf16": True},
    "checkpointed": {},
    "evaluating": {"eval_strategy": "steps", "eval_steps": 5},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_fifty_steps_are_bit_identical_and_the_model_left_as_found(name, tmp_path):
    options = VARIANTS[name] | {"max_steps": 50 if name == "plain" else 10}
    callback = MonitorCallback(every=4)
    watched, bare = build(), build()
    if name == "checkpointed":
        for model in (watched, bare):
            # The name of transformers < 5, deprecated since.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
    watched, bare = train(tmp_path, callback, model=watched, **options), train(tmp_path, model=bare, **options)
    assert logged(watched, "loss") == logged(bare, "loss")
    states = zip(watched.model.state_dict().values(), bare.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in states)
    for module, twin in zip(watched.model.modules(), bare.model.modules(), strict=True):
        assert len(module._forward_hooks) == len(twin._forward_hooks)
        assert len(module._forward_pre_hooks) == len(twin._forward_pre_hooks)
    recording = callback.recording
    assert recording.steps("activation", "rms").tolist() == list(range(0, options["max_steps"], 4))
    assert recording.steps("run", "grad_norm").tolist() == list(range(options["max_steps"]))
    assert "missing" not in recording.facts


@pytest.mark.parametrize("name", ["plain", "accumulated", "evaluating"])
def test_loss_and_norms_are_those_the_trainer_logs(name, tmp_path):
    callback = MonitorCallback(every=2)
    trainer = train(tmp_path, callback, **VARIANTS[name])
    recording = callback.recording
    assert recording.series("run", "run", "loss")[1] == pytest.approx(logged(trainer, "loss"), rel=1e-5)
    unclipped = logged(trainer, "grad_norm")
    assert recording.series("run", "run", "unclipped_grad_norm")[1] == pytest.approx(unclipped, rel=1e-5)
    clipped = [min(1.0, norm) for norm in unclipped]
    assert recording.series("run", "run", "grad_norm")[1] == pytest.approx(clipped, rel=1e-4)
    steps, losses = recording.series("run", "run", "eval_loss")
    assert losses == pytest.approx(logged(trainer, "eval_loss"))
    assert steps.tolist() == ([4, 5] if name == "evaluating" else [])
    assert len(recording.steps()) == 6


def test_a_model_without_a_loss_of_its_own_has_the_one_the_trainer_logs(tmp_path):
    callback = MonitorCallback(every=2)
    trainer = train(tmp_path, callback, label_smoothing_factor=0.1)
    steps, losses = callback.recording.series("run", "run", "loss")
    assert steps.tolist() == list(range(6))
    assert losses == pytest.approx(logged(trainer, "loss"))


def test_a_resumed_run_goes_on_counting_in_a_folder_beside(tmp_path, capsys):
    options = {"save_strategy": "steps", "save_steps": 4}
    train(tmp_path, MonitorCallback(every=2, out=tmp_path / "run"), max_steps=8, **options)
    checkpoint = str(tmp_path / "trainer" / "checkpoint-4")
    for _ in range(2):
        callback = MonitorCallback(every=2, out=tmp_path / "run")
        train(tmp_path, callback, max_steps=8, resume=checkpoint, **options)
    straight, rest, again = (Recording.load(tmp_path / name) for name in ("run", "run-from-4", "run-from-4-2"))
    assert rest.steps("activation", "rms").tolist() == [4, 6]
    assert rest.steps("run", "loss").tolist() == again.steps("run", "loss").tolist() == [4, 5, 6, 7]
    for key in (("run", "run", "loss"), ("run", "run", "grad_norm")):
        assert rest.series(*key)[1] == pytest.approx(straight.series(*key)[1][4:], rel=1e-5)
    assert f"of {len(rest.sites)} sites in {tmp_path / 'run-from-4'}" in capsys.readouterr().err


def test_a_folder_in_use_is_told_before_training(tmp_path):
    train(tmp_path, MonitorCallback(out=tmp_path / "run"), max_steps=1)
    with pytest.raises(FileExistsError, match="already holds a recording"):
        train(tmp_path, MonitorCallback(out=tmp_path / "run"), max_steps=1)


class Failing(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise RuntimeError("mine")


@pytest.mark.parametrize("ending", ["with", "close"])
def test_an_exception_leaves_a_readable_recording(ending, tmp_path):
    model, callback = build(), MonitorCallback(every=1, out=tmp_path / "run")
    options = {"gradient_accumulation_steps": 2}
    with pytest.raises(RuntimeError, match="mine"):
        if ending == "with":
            with callback:
                train(tmp_path, callback, Failing(), model=model, **options)
        else:
            train(tmp_path, callback, Failing(), model=model, **options)
    callback.close()
    recording = Recording.load(tmp_path / "run")
    assert recording.steps("run", "loss").tolist() == [0, 1, 2]
    assert recording.steps("activation", "rms").tolist() == [0, 1, 2, 3]
    assert len(callback.recording) == len(recording)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_one_callback_serves_one_run_after_another(tmp_path):
    callback = MonitorCallback(every=2)
    assert callback.recording is None
    assert callback.monitor is None
    train(tmp_path, callback, max_steps=2)
    first = callback.recording
    train(tmp_path, callback, max_steps=4)
    assert first.steps("run", "loss").tolist() == [0, 1]
    assert callback.recording.steps("run", "loss").tolist() == [0, 1, 2, 3]
    assert callback.monitor.step == 4


class Losses(nn.Module):
    def forward(self, loss, kind="dict", num_items_in_batch=None):
        return {"dict": {"loss": loss}, "tuple": (loss, 1), "none": (), "number": {"loss": 3.0}}[kind]


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_losses_of_micro_batches(kind):
    model = Losses()
    reader = LossReader(model, num_processes=2)
    numbers = [torch.tensor(value, requires_grad=True) for value in (1.0, 2.0, 6.0)]
    for number in numbers:
        model(number, kind)
    assert reader.take().item() == pytest.approx(3.0)
    for number in numbers:
        model(number, kind, num_items_in_batch=torch.tensor(7))
    assert reader.take().item() == pytest.approx(18.0)
    assert reader.take() is None


def test_what_is_no_training_loss_is_not_read():
    model = Losses()
    reader = LossReader(model)
    model(torch.tensor(1.0, requires_grad=True), "none")
    model(torch.tensor(1.0), "number")
    model(torch.tensor(1.0))
    model.eval()(torch.tensor(1.0, requires_grad=True))
    with torch.no_grad():
        model.train()(torch.tensor(1.0, requires_grad=True))
    copy.deepcopy(model)(torch.tensor(1.0, requires_grad=True))
    assert reader.take() is None
    assert not reader.has_seen
    reader.remove()
    assert not model._forward_hooks
