"""NAME_text.h and NAME_text.c: from text to text with a model that takes a token at a time.

The tables of a tokenizer, merging and looking up of tokens, sampling, and a loop around NAME_run.
The model has two inputs of one integer besides its state: the token, then its position, that is how
many tokens came before it; its first output are the logits, of floats, its only one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.backends.cfamily.names import comment
from graphc.backends.micro_c.model import Model, Tensor
from graphc.backends.micro_c.tokenizer_file import Tokenizer
from graphc.backends.micro_c.weights import array_lines
from graphc.errors import ModelError

HEADER = """\
{title}
#ifndef {macro}_TEXT_H
#define {macro}_TEXT_H

#include "{name}.h"

#ifdef __cplusplus
extern "C" {{
#endif

#define {macro}_WORDS {words}    /* tokens that there are */
#define {macro}_BEGIN_TOKEN {begin} /* what a text begins with; -1: nothing */
#define {macro}_END_TOKEN {end}   /* what a text ends with; -1: nothing */

/* How a token is chosen: the likeliest if `temperature` is 0; otherwise at random, by logits over
 * the temperature, among the likeliest that have `share` of all (1: among all). `random` is any
 * number but 0; it changes. */
typedef struct {{
    float temperature, share;
    uint32_t random;
}} {name}_sampling;

/* A text in the making. `logits` has room for {macro}_WORDS floats. */
typedef struct {{
    {name}_state state;
    int32_t position;
    float *logits;
}} {name}_text;

/* The tokens of a text, the first one included that all texts begin with. `tokens` has room for
 * `most`, which must be two more than the text has bytes; -1 if it is not. */
int32_t {name}_encode(const char *text, uint32_t bytes, int32_t *tokens, int32_t most);

/* The bytes that a token stands for, and how many; they do not end with 0. */
const char *{name}_decode(int32_t token, uint32_t *bytes);

/* A token by its logits, which change. */
int32_t {name}_sample(float *logits, {name}_sampling *how);

/* Begins a text. */
void {name}_begin({name}_text *text, float *logits);

/* Takes a token; then text->logits are those of the next one. A text holds {capacity} tokens. */
{name}_status {name}_take({name}_text *text, int32_t token, void *arena);

/* Takes the tokens of a prompt, and goes on until there are `most` tokens in all or the text ends.
 * `say` is given the bytes of each token, those of the prompt included, and `context`. */
{name}_status {name}_generate({name}_text *text, const int32_t *prompt, int32_t count,
    int32_t most, {name}_sampling *how, void *arena,
    void (*say)(void *context, const char *bytes, uint32_t count), void *context);

#ifdef __cplusplus
}}
#endif
#endif
"""

SOURCE = """\
{title}
#include "{name}_text.h"

#include <string.h>

/* Pieces of text, one after another; where each begins; the tokens in the order of their pieces. */
{tables}
/* ---- tokens */

static int piece_order(uint32_t token, const uint8_t *bytes, uint32_t count)
{{
    const uint32_t own = starts[token + 1] - starts[token];
    const int order = memcmp(pieces + starts[token], bytes, own < count ? own : count);
    return order != 0 ? order : own < count ? -1 : own > count;
}}

/* The token of a piece; -1 if there is none. */
static int32_t token_of(const uint8_t *bytes, uint32_t count)
{{
    uint32_t low = 0, high = WORDS;
    while (low < high) {{
        const uint32_t middle = (low + high) / 2;
        const int order = piece_order(in_order[middle], bytes, count);
        if (order == 0) {{
            return (int32_t)in_order[middle];
        }}
        if (order < 0) {{
            low = middle + 1;
        }} else {{
            high = middle;
        }}
    }}
    return -1;
}}

/* The number of the merge of two tokens; MERGES if there is none. */
static uint32_t merge_of(int32_t left, int32_t right)
{{
    uint32_t low = 0, high = MERGES;
    while (low < high) {{
        const uint32_t middle = (low + high) / 2;
        const int32_t first = (int32_t)merge_left[middle], second = (int32_t)merge_right[middle];
        if (first == left && second == right) {{
            return middle;
        }}
        if (first < left || (first == left && second < right)) {{
            low = middle + 1;
        }} else {{
            high = middle;
        }}
    }}
    return MERGES;
}}

static uint32_t length_of_character(const uint8_t *at, uint32_t left)
{{
    uint32_t count = 1;
    while (count < left && count < 4 && (at[count] & 0xc0u) == 0x80u) {{
        ++count;
    }}
    return at[0] < 0x80u ? 1 : count;
}}

/* Appends the token of a character, or those of its bytes; the new number of tokens. */
static int32_t append(int32_t *tokens, int32_t count, const uint8_t *character, uint32_t bytes)
{{
    const int32_t whole = token_of(character, bytes);
    uint32_t n;
    if (whole >= 0) {{
        tokens[count] = whole;
        return count + 1;
    }}
    for (n = 0; n < bytes; ++n) {{
        const int32_t own = of_bytes[character[n]];
        if (own >= 0) {{
            tokens[count++] = own;
        }} else if (UNKNOWN >= 0 && n == 0) {{
            tokens[count++] = UNKNOWN;
        }}
    }}
    return count;
}}

int32_t {name}_encode(const char *text, uint32_t bytes, int32_t *tokens, int32_t most)
{{
    static const uint8_t space[3] = {{0xe2, 0x96, 0x81}};
    const uint8_t *at = (const uint8_t *)text;
    int32_t count = 0, begin = 0;
    if (most < 2 || bytes > (uint32_t)(most - 2)) {{
        return -1;
    }}
    if ({macro}_BEGIN_TOKEN >= 0) {{
        tokens[count++] = {macro}_BEGIN_TOKEN;
        begin = 1;
    }}
    if (PREFIX && bytes != 0) {{
        count = append(tokens, count, space, sizeof space);
    }}
    while (bytes != 0) {{
        const uint32_t own = length_of_character(at, bytes);
        count = *at == ' ' ? append(tokens, count, space, sizeof space)
                           : append(tokens, count, at, own);
        at += own;
        bytes -= own;
    }}
    for (;;) {{
        uint32_t best = 0xffffffffu, merge = 0;
        int32_t n, place = 0;
        for (n = begin; n + 1 < count; ++n) {{
            const uint32_t own = merge_of(tokens[n], tokens[n + 1]);
            if (own < MERGES && merge_rank[own] < best) {{
                best = merge_rank[own];
                merge = own;
                place = n;
            }}
        }}
        if (best == 0xffffffffu) {{
            return count;
        }}
        tokens[place] = (int32_t)merge_result[merge];
        for (n = place + 1; n + 1 < count; ++n) {{
            tokens[n] = tokens[n + 1];
        }}
        --count;
    }}
}}

const char *{name}_decode(int32_t token, uint32_t *bytes)
{{
    if (token < 0 || token >= (int32_t)WORDS) {{
        *bytes = 0;
        return "";
    }}
    *bytes = text_starts[token + 1] - text_starts[token];
    return (const char *)texts + text_starts[token];
}}

/* ---- choosing */

/* exp(x) for x <= 0, in float arithmetic alone, so that every machine chooses alike. */
static float power(float x)
{{
    union {{ float number; int32_t bits; }} scale;
    float whole, rest;
    if (x < -87.0f) {{
        return 0.0f;
    }}
    whole = (float)(int32_t)(x * 1.44269504f - 0.5f);
    rest = x - whole * 0.693145752f;
    rest = rest - whole * 1.42860677e-6f;
    scale.bits = ((int32_t)whole + 127) * (1 << 23);
    return scale.number *
           (1.0f + rest * (1.0f + rest * (0.5f + rest * (0.166666667f +
            rest * (0.0416666667f + rest * (0.00833333333f + rest * 0.00138888889f))))));
}}

static float sum_above(const float *x, float limit)
{{
    float total = 0.0f;
    uint32_t n;
    for (n = 0; n < WORDS; ++n) {{
        total += x[n] >= limit ? x[n] : 0.0f;
    }}
    return total;
}}

int32_t {name}_sample(float *logits, {name}_sampling *how)
{{
    uint32_t best = 0, n;
    float low = 0.0f, high = 1.0f, total, place;
    int step;
    for (n = 1; n < WORDS; ++n) {{
        best = logits[n] > logits[best] ? n : best;
    }}
    if (!(how->temperature > 0.0f)) {{
        return (int32_t)best;
    }}
    place = logits[best];
    for (n = 0; n < WORDS; ++n) {{
        logits[n] = power((logits[n] - place) / how->temperature);
    }}
    total = sum_above(logits, 0.0f);
    /* the highest limit above which there is still as large a share */
    for (step = 0; step < 24 && how->share < 1.0f; ++step) {{
        const float middle = (low + high) * 0.5f;
        if (sum_above(logits, middle) >= how->share * total) {{
            low = middle;
        }} else {{
            high = middle;
        }}
    }}
    how->random ^= how->random << 13;
    how->random ^= how->random >> 17;
    how->random ^= how->random << 5;
    place = (float)(how->random >> 8) * (1.0f / 16777216.0f) * sum_above(logits, low);
    for (n = 0; n < WORDS; ++n) {{
        if (logits[n] >= low) {{
            place -= logits[n];
            if (place < 0.0f) {{
                return (int32_t)n;
            }}
        }}
    }}
    return (int32_t)best;
}}

/* ---- the loop */

void {name}_begin({name}_text *text, float *logits)
{{
    {name}_reset(&text->state);
    text->position = 0;
    text->logits = logits;
}}

{name}_status {name}_take({name}_text *text, int32_t token, void *arena)
{{
    const {token_type} given = ({token_type})token;
    const {position_type} position = ({position_type})text->position;
    {name}_inputs inputs;
    {name}_outputs outputs;
    {name}_status status;
    inputs.{token} = &given;
    inputs.{position} = &position;
    outputs.{logits} = text->logits;
    status = {name}_run(&inputs, &outputs, &text->state, arena);
    text->position += status == {macro}_OK;
    return status;
}}

{name}_status {name}_generate({name}_text *text, const int32_t *prompt, int32_t count,
    int32_t most, {name}_sampling *how, void *arena,
    void (*say)(void *context, const char *bytes, uint32_t count), void *context)
{{
    int32_t n, token = 0;
    for (n = 0; n < most; ++n) {{
        uint32_t bytes;
        const char *piece;
        {name}_status status;
        if (n >= count) {{
            if (n == 0) {{
                break;
            }}
            token = {name}_sample(text->logits, how);
            if (token == {macro}_END_TOKEN || token == {macro}_BEGIN_TOKEN) {{
                break;
            }}
        }} else {{
            token = prompt[n];
        }}
        piece = {name}_decode(token, &bytes);
        if (PREFIX && bytes != 0 && *piece == ' ' && n == ({macro}_BEGIN_TOKEN >= 0)) {{
            ++piece; /* the space that texts are given */
            --bytes;
        }}
        say(context, piece, bytes);
        if (n + 1 < most) {{
            status = {name}_take(text, token, arena);
            if (status != {macro}_OK) {{
                return status;
            }}
        }}
    }}
    return {macro}_OK;
}}
"""

MAIN = """\
{title}
#include "{name}_text.h"

#include <stdio.h>
#include <string.h>

#ifndef {macro}_PROMPT
#define {macro}_PROMPT ""
#endif
#ifndef {macro}_MOST
#define {macro}_MOST {most} /* tokens in all */
#endif
#ifndef {macro}_TEMPERATURE
#define {macro}_TEMPERATURE 0.0f
#endif

static double arena[{macro}_ARENA_SIZE / sizeof(double) + 3];
static float logits[{macro}_WORDS];
static int32_t tokens[sizeof {macro}_PROMPT + 1];
static {name}_text text;

static void say(void *context, const char *bytes, uint32_t count)
{{
    (void)context;
    (void)fwrite(bytes, 1, count, stdout);
}}

int main(void)
{{
    {name}_sampling how = {{{macro}_TEMPERATURE, 0.9f, 1}};
    unsigned char *start = (unsigned char *)arena;
    {name}_status status;
    const int32_t count = {name}_encode({macro}_PROMPT, sizeof {macro}_PROMPT - 1, tokens,
        sizeof tokens / sizeof *tokens);
    while ((uintptr_t)start % {macro}_ARENA_ALIGN != 0) {{
        ++start;
    }}
    {name}_begin(&text, logits);
    status = {name}_generate(&text, tokens, count, {macro}_MOST, &how, start, say, NULL);
    printf("\\n");
    if (status != {macro}_OK) {{
        printf("status %d: %s\\n", (int)status, {name}_status_string(status));
        return 2;
    }}
    return 0;
}}
"""
STANDARD_MOST = 64


def text_files(model: Model, tokenizer: Tokenizer) -> dict[str, str]:
    """The files; ModelError if the model does not take a token at a time."""
    token, position = _inputs(model)
    logits = _logits(model, tokenizer)
    name, what = model.name, "text and tokens. Made by graphc; do not edit."
    capacity = _capacity(model)
    fields = {
        "title": comment(f"{name}: {what}"), "name": name, "macro": model.macro,
        "words": len(tokenizer.pieces), "begin": tokenizer.begin, "end": tokenizer.end,
        "capacity": f"at most {capacity}", "tables": _tables(tokenizer),
        "token": token.field, "token_type": token.c_type, "position": position.field,
        "position_type": position.c_type, "logits": logits.field,
        "most": min(STANDARD_MOST, capacity),
    }  # fmt: skip
    return {
        f"{name}_text.h": HEADER.format(**fields), f"{name}_text.c": SOURCE.format(**fields),
        f"{name}_say.c": MAIN.format(**fields),
    }  # fmt: skip


def _inputs(model: Model) -> list[Tensor]:
    integers = [t for t in model.inputs if t.type.dtype.is_integer and t.elements == 1]
    if len(model.inputs) != 2 or len(integers) != 2 or not model.state:
        given = ", ".join(f"{t.name} {t.shape_text}" for t in model.inputs) or "none"
        raise ModelError(
            "--tokenizer: expected a model with --state whose other inputs are the token and its "
            f"position, an integer each; found inputs {given}{'' if model.state else ', no state'}"
        )
    return integers


def _logits(model: Model, tokenizer: Tokenizer) -> Tensor:
    words = len(tokenizer.pieces)
    (first, *others) = model.outputs
    if others or first.c_type != "float" or first.elements != words:
        given = ", ".join(f"{t.name} {t.shape_text}" for t in model.outputs)
        raise ModelError(
            f"--tokenizer: there are {words} tokens, so the one output besides the state must "
            f"be as many logits in float32; found {given}"
        )
    return first


def _capacity(model: Model) -> int:
    """How many tokens the cache has room for, as far as its shapes tell: the second to last dim of
    the first state of rank 4."""
    rows = [t.type.static_shape[-2] for t in model.state if len(t.type.static_shape) == 4]
    return min(rows, default=1 << 16)


def _tables(tokenizer: Tokenizer) -> str:
    words = range(len(tokenizer.pieces))
    number = np.uint16 if len(words) <= 1 << 16 else np.uint32
    order = sorted(words, key=lambda n: tokenizer.pieces[n])
    by_pair = sorted((*pair, rank, made) for rank, (*pair, made) in enumerate(tokenizer.merges))
    columns = list(zip(*by_pair)) if by_pair else [(0,)] * 4
    return "\n".join(
        [
            f"#define WORDS {len(words)}u",
            f"#define MERGES {len(by_pair)}u",
            f"#define UNKNOWN {tokenizer.unknown}",
            f"#define PREFIX {int(tokenizer.prefix)}",
            _joined("pieces", "starts", tokenizer.pieces),
            _joined("texts", "text_starts", tokenizer.texts),
            _array("in_order", np.array(order, number)),
            _array("merge_left", np.array(columns[0], number)),
            _array("merge_right", np.array(columns[1], number)),
            _array("merge_rank", np.array(columns[2], np.uint32)),
            _array("merge_result", np.array(columns[3], number)),
            _array("of_bytes", np.array(tokenizer.bytes, np.int32)),
        ]
    )


def _joined(name: str, starts: str, pieces: Sequence[bytes]) -> str:
    joined = np.frombuffer(b"".join(pieces) or b"\0", np.uint8)
    places = np.cumsum([0, *map(len, pieces)]).astype(np.uint32)
    return f"{_array(name, joined)}\n{_array(starts, places)}"


def _array(name: str, contents: np.ndarray) -> str:
    kind = {"uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "int32": "int32_t"}
    declared = f"static const {kind[contents.dtype.name]} {name}[{contents.size}]"
    return f"{declared} = {{\n{array_lines(contents)}\n}};"
