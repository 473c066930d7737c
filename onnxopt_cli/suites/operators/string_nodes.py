"""Generators of operators for texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.elementwise_nodes import operand_shapes
from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape

_STRING = DTYPES["string"]
_SENTENCES = ("a b c", "  a  b ", "", "x,y,,z", "one", "a,b c", "été,là", " ", "a--b--", "AbC dEf")
_WORDS = ("monday", "Tuesday", "THE", "the", "wednesday morning", "a", "İ", "ß", "")
_PATTERNS = ("a.*", "[a-z]+", r"\d+|[^@]+@[^@]+", "(ab|A)b?", ".*", "")
_MAILS = ("a@b.com", "account", "ab", "Ab", "123", "", "aab", "x@y", "A")


def _texts(draft: NodeDraft, pool: tuple[str, ...], shape: Shape) -> Array:
    places = draft.state().randint(0, len(pool), shape)
    texts = [pool[place] for place in np.ravel(places)]
    return np.array(texts, object).reshape(shape)


def _concat(draft: NodeDraft) -> None:
    for shape in operand_shapes(draft, 2):
        draft.add(draft.tensor(_STRING, shape))


def _split(draft: NodeDraft) -> None:
    draft.attribute("delimiter", (None, ",", "", "--"))
    draft.attribute("maxsplit", (None, 1, 2))
    draft.add(_texts(draft, _SENTENCES, draft.shape(1, 3)))
    draft.outputs = [True, True]


def _regex(draft: NodeDraft) -> None:
    draft.set("pattern", draft.choice(_PATTERNS))
    draft.add(_texts(draft, _MAILS, draft.shape(0, 3)))


def _normalizer(draft: NodeDraft) -> None:
    draft.attribute("case_change_action", (None, "LOWER", "UPPER", "NONE"))
    draft.attribute("is_case_sensitive", (None, 1, 0))
    draft.attribute("stopwords", (None, ["the", "monday"], ["THE", "a"]))
    shape: Shape = (draft.size(),) if draft.maybe() else (1, draft.size())
    draft.add(_texts(draft, _WORDS[:6], shape))


def _tfidf(draft: NodeDraft) -> None:
    largest = draft.choice((2, 1, 3))
    smallest = draft.integer(1, largest)
    pools = {1: [[2], [3], [5]], 2: [[2, 3], [3, 5], [5, 5]], 3: [[2, 3, 5]]}
    grams = [gram for size in range(1, largest + 1) for gram in pools[size]]
    starts: list[int] = []
    flat: list[int] = []
    for size in range(1, largest + 1):
        starts.append(len(flat))
        flat += [word for gram in pools[size] for word in gram]
    draft.set("min_gram_length", smallest)
    draft.set("max_gram_length", largest)
    draft.set("max_skip_count", draft.choice((0, 1, 2)))
    mode = draft.set("mode", draft.choice(("TF", "IDF", "TFIDF")))
    draft.set("ngram_counts", starts)
    order = draft.state().permutation(len(grams)).tolist()
    draft.set("ngram_indexes", order)
    is_text = draft.maybe(3)
    draft.set(
        "pool_strings" if is_text else "pool_int64s", list(map(str, flat)) if is_text else flat
    )
    if mode != "TF" or draft.maybe():
        # Some implementations assume that the weights are in the order of the pool, and others in
        # the order of the outputs. Therefore, the generator draws nodes in which both orders are
        # the same.
        draft.set("ngram_indexes", list(range(len(grams))))
        draft.set("weights", [float(np.float32(0.5 + place / 4)) for place in range(len(grams))])
    shape: Shape = (draft.integer(2, 8),)
    shape = (draft.size(1, 3), *shape) if draft.maybe() else shape
    words = np.array([2, 3, 5, 7])[draft.state().randint(0, 4, shape)]
    if is_text:
        draft.add(np.array([str(word) for word in words.ravel()], object).reshape(shape))
    else:
        draft.add(words.astype(draft.dtype(0, ("int64", "int32"))))


#: Generators by operator.
STRING: Mapping[str, Callable[[NodeDraft], None]] = {
    "StringConcat": _concat,
    "StringSplit": _split,
    "RegexFullMatch": _regex,
    "StringNormalizer": _normalizer,
    "TfIdfVectorizer": _tfidf,
}
