"""How good translations are: BLEU and chrF, each with the signature that says how it was computed."""

from __future__ import annotations

from collections.abc import Sequence

MISSING_EXTRA = "BLEU needs sacrebleu: pip install 'kilolayer[train]'"


def measure_bleu(translations: Sequence[str], references: Sequence[str], *, tokenize: str) -> tuple[float, str]:
    """BLEU of a corpus, 0 to 100, and the signature that says how it was computed.

    Args:
        translations: one text per reference.
        references: one per translation.
        tokenize: ``"13a"`` for sentences, ``"char"`` where whole targets are single words.

    Raises:
        ImportError: sacrebleu (of the ``train`` extra) is not installed.

    Reference: Papineni et al. 2002; Post 2018, arXiv:1804.08771.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    bleu = BLEU(tokenize=tokenize)
    score = bleu.corpus_score(list(translations), [list(references)])
    return float(score.score), str(bleu.get_signature())


def measure_chrf(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """chrF of a corpus, 0 to 100, and its signature; arguments as :func:`measure_bleu`.

    Raises:
        ImportError: sacrebleu (of the ``train`` extra) is not installed.

    Reference: Popović 2015, chrF: character n-gram F-score for automatic MT evaluation.
    """
    try:
        from sacrebleu.metrics import CHRF
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    chrf = CHRF()
    score = chrf.corpus_score(list(translations), [list(references)])
    return float(score.score), str(chrf.get_signature())
