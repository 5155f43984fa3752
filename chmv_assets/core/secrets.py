"""Secrets inside DDL: where they stand, and texts without them. Pure; the one place that knows what a secret looks like.

A statement is sent to the server as it is written, and shown, logged and stored only as `mask_secrets` gives it: each secret is `[HIDDEN]`, as the
server itself prints it. What counts: passwords and keys by their name (`PASSWORD 'x'`, `kafka_sasl_password = 'x'`), by their place among the
arguments of an engine or table function, credentials inside addresses, values of headers, keys of `encrypt`, and IDENTIFIED BY. Invariant: every
character that is no secret stays. Hiding too much costs a reader a word; hiding too little costs a password, so doubt hides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from chmv_assets.core.tokens import Token, split_commas, string_value, tokenize

HIDDEN = "[HIDDEN]"
SLOT = re.compile(r"\[HIDDEN (\d+)\]")  # a secret that is kept elsewhere: `core.deploy.sealing`
Span = tuple[int, int]
_NAMED = re.compile(
    r"(?i)(passw(or)?d|passphrase|secret|(^|_)token$|credential|account_?key|private_?key|api_?key|access_key$|connection_string|^sas$)"
)
_NOT_SECRET = "insert_deduplication_token"  # noqa: S105 (a setting that chmv itself sends)
# A text with none of these words has no secret: most have none, and a location of thousands of objects asks for each.
_TELLING = (
    "passw", "passphrase", "secret", "token", "credential", "key", "connection_string", "sas", "://", "sig", "identified", "header", "crypt",
    "s3", "gcs", "oss", "cosn", "deltalake", "hudi", "iceberg", "paimon", "azure", "mysql", "postgresql", "mongodb", "maxcompute", "ytsaurus",
    "redis", "remote", "[hidden ",
)  # fmt: skip
# Addresses: what stands between the user's name and the @, and values of telling parameters.
_IN_ADDRESS = (
    re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@'?#]*:(?P<secret>[^\s/'@]+(?:@(?=[^\s/'@]*@)[^\s/'@]*)*)@"),
    re.compile(
        r"(?i)[?&;](?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|token|access_token|password|passwd|pwd|secret"
        r"|api_?key|accountkey|sharedaccesssignature|client_secret)=(?P<secret>[^&;'\s]+)"
    ),
)
_COMPRESSIONS = frozenset(
    {"none", "auto", "gzip", "gz", "br", "brotli", "xz", "lzma", "zstd", "zst", "lz4", "bz2", "snappy"}
)
_S3 = re.compile(r"(?i)(s3|s3queue|gcs|oss|cosn|deltalake(s3)?|hudi|iceberg(s3)?|paimon(s3)?)(cluster)?\Z")
_AZURE = re.compile(r"(?i)(azureblobstorage|azurequeue|(iceberg|deltalake|paimon)azure)(cluster)?\Z")
_DATABASES = re.compile(
    r"(?i)(mysql|postgresql|mongodb|materializedpostgresql|materializedmysql|maxcompute|ytsaurus)\Z"
)
_REMOTE = re.compile(r"(?i)remote(secure)?\Z")
_CRYPT = re.compile(r"(?i)(aes_)?(try)?(en|de)crypt(_mysql)?\Z")

_FEW = 400  # tokens of arguments

Argument = Sequence[Token]


def find_secrets(sql: str) -> tuple[Span, ...]:
    """Where secrets stand in a text of one or many statements, in order, none overlapping another.

    >>> text = "ENGINE = MySQL('h:1', 'd', 't', 'u', 'pw')"
    >>> [text[start:end] for start, end in find_secrets(text)]
    ['pw']
    """
    lowered = sql.lower()
    if not any(word in lowered for word in _TELLING):
        return ()
    tokens, broken = tokenize(sql)
    rest = () if broken is None else _in_address(sql[broken.offset :], broken.offset)  # of what cannot be read
    found = sorted({*_by_name(tokens), *_by_place(tokens), *_inside(tokens), *rest, *_slots(sql)})
    return tuple(_apart(found))


def mask_secrets(sql: str) -> str:
    """The text with `[HIDDEN]` for each secret.

    >>> mask_secrets("SOURCE(CLICKHOUSE(USER 'u' PASSWORD 'pw' DB 'd'))")
    "SOURCE(CLICKHOUSE(USER 'u' PASSWORD '[HIDDEN]' DB 'd'))"
    >>> mask_secrets("ENGINE = URL('https://u:pw@host/x', CSV)")
    "ENGINE = URL('https://u:[HIDDEN]@host/x', CSV)"
    """
    return replace_secrets(sql, lambda _secret: HIDDEN)


def replace_secrets(sql: str, by: Callable[[str], str]) -> str:
    """The text with something else for each secret."""
    pieces: list[str] = []
    at = 0
    for start, end in find_secrets(sql):
        pieces += [sql[at:start], by(sql[start:end])]
        at = end
    return "".join([*pieces, sql[at:]])


def mask_known(text: str, *statements: str) -> str:
    """Any text (an error, a fragment) without the secrets that these statements hold, as written or as they read.

    >>> mask_known("Syntax error near 'pw' (x)", "SOURCE(MYSQL(PASSWORD 'pw'))")
    "Syntax error near '[HIDDEN]' (x)"
    """
    known = {sql[start:end] for sql in statements for start, end in find_secrets(sql)}
    return mask_values(text, known)


def mask_values(text: str, secrets: Iterable[str]) -> str:
    """Any text without these values. One of a letter or two is looked for between quotes only: else no word would be left."""
    values = {form for secret in secrets if secret for form in (secret, string_value(f"'{secret}'")) if form}
    for value in sorted(values, key=len, reverse=True):
        if text == value:
            return HIDDEN
        text = text.replace(value, HIDDEN) if len(value) > 3 else text.replace(f"'{value}'", f"'{HIDDEN}'")
    return text


def _apart(spans: Iterable[Span]) -> Iterator[Span]:
    last = 0
    for start, end in spans:
        if start >= last and end > start:
            yield start, end
            last = end


def _slots(sql: str) -> Iterator[Span]:
    """What looks like a place of ours is kept like a secret, so that it comes back as it was."""
    return (found.span() for found in SLOT.finditer(sql))


def _body(token: Token) -> Span:
    """What stands between the quotes of a literal."""
    edge = token.text.index("$", 1) + 1 if token.text.startswith("$") else 1
    return token.start + edge, token.end - edge


def _by_name(tokens: Sequence[Token]) -> Iterator[Span]:
    """`PASSWORD 'x'`, `password = 'x'`, `VALUE 'x'` of a header, `headers('a' = 'x')`, IDENTIFIED … BY 'x'."""
    for at, token in enumerate(tokens):
        if token.kind != "string":
            continue
        before = tokens[at - 1] if at else token
        key = tokens[at - 2] if before.is_op("=", "==") and at > 1 else before
        name = key.text.strip("`\"'")
        named = key is not token and (key.kind != "string" or before.is_op("=", "=="))
        if (
            (named and _NAMED.search(name) and name != _NOT_SECRET)
            or (key.is_word("BY") and any(one.is_word("IDENTIFIED") for one in tokens[max(0, at - 5) : at]))
            or ((before.is_op("=") or before.is_word("VALUE")) and _in_headers(tokens, at))
        ):
            yield _body(token)


def _in_headers(tokens: Sequence[Token], at: int) -> bool:
    """Whether the bracket around a token is that of HEADER(…) or headers(…)."""
    depth = 0
    for back in range(at - 1, max(-1, at - 200), -1):
        depth += tokens[back].is_op(")") - tokens[back].is_op("(")
        if depth < 0:
            return back > 0 and tokens[back - 1].is_word("HEADER", "HEADERS")
    return False


def _by_place(tokens: Sequence[Token]) -> Iterator[Span]:
    """Arguments of engines and table functions that are secrets by their place."""
    for at, token in enumerate(tokens[:-1]):
        if (
            token.kind in ("word", "quoted")
            and tokens[at + 1].is_op("(")
            and (places := _places(token.text.strip('`"')))
        ):
            arguments = split_commas(tokens[at + 2 : _closing(tokens, at + 1)])
            for place in places(arguments):
                if place < len(arguments):
                    yield from (_body(one) for one in arguments[place] if one.kind == "string")


def _closing(tokens: Sequence[Token], at: int) -> int:
    """Where a bracket ends, or where we stop looking: a secret is among the first arguments."""
    depth = 0
    last = min(len(tokens), at + _FEW)
    for here in range(at, last):
        depth += tokens[here].is_op("(", "[") - tokens[here].is_op(")", "]")
        if depth == 0:
            return here
    return last


def _places(name: str) -> Callable[[Sequence[Argument]], Sequence[int]] | None:
    shift = 1 if name.lower().endswith("cluster") else 0
    if _S3.match(name):
        return lambda arguments: _s3(arguments, shift)
    if _AZURE.match(name):
        return lambda _arguments: (4 + shift,)
    if _DATABASES.match(name):
        return lambda arguments: (3,) if len(arguments) == 4 else (4,)
    if name.lower() == "redis":
        return lambda arguments: (4,) if len(arguments) >= 5 else (2,)
    if _REMOTE.match(name):
        return lambda arguments: (3, 4) if _is_qualified(arguments) else (4,)
    if _CRYPT.match(name):
        return lambda arguments: range(1, len(arguments))
    return None


def _s3(arguments: Sequence[Argument], shift: int) -> Sequence[int]:
    """`(url, key, secret[, session token], …)`, but `(url, format, structure, compression)` has none."""
    texts = [
        string_value(one[0].text) if len(one) == 1 and one[0].kind == "string" else "" for one in arguments[shift:]
    ]
    if len(texts) < 3 or texts[1].upper() == "NOSIGN" or texts[2].lower() in _COMPRESSIONS or " " in texts[2].strip():
        return ()
    is_session = len(texts) > 3 and (len(texts[3]) > 40 or not texts[3].isalnum())
    return (2 + shift, 3 + shift) if is_session else (2 + shift,)


def _is_qualified(arguments: Sequence[Argument]) -> bool:
    """Whether the second argument of remote() names a table with its database, or is a table function."""
    second = arguments[1] if len(arguments) > 1 else ()
    return len(second) > 1 or any(token.kind == "string" and "." in token.text for token in second)


def _inside(tokens: Sequence[Token]) -> Iterator[Span]:
    for token in tokens:
        if token.kind == "string":
            yield from _in_address(token.text, token.start)


def _in_address(text: str, offset: int) -> Iterator[Span]:
    for pattern in _IN_ADDRESS:
        for found in pattern.finditer(text):
            start, end = found.span("secret")
            yield offset + start, offset + end
