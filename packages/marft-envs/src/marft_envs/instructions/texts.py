"""Text analysis: words, sentences, paragraphs, and languages.

A language is detected by script, and by common words for languages that share a script. Detection is small,
deterministic and needs no model. It reports if a text may be in a language. A few words without a common word may be in
any language of their script. This counts as followed, as in IFEval, where undetectable texts count as followed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

WORD = re.compile(r"\w+")
HYPHENATED_WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
LEADING_ABBREVIATIONS = r"Mr|Mrs|Ms|Dr|Prof|St|vs|e\.g|i\.e|P\.S|P\.P\.S"  # abbreviations that never end one
OTHER_ABBREVIATIONS = r"Jr|Sr|etc|a\.m|p\.m|No|Inc|Ltd|Co|[A-Z]"  # abbreviations that may end a sentence
SENTENCE_STARTERS = (
    "A|After|Also|An|And|As|At|Before|But|For|He|Her|Here|His|How|However|I|If|In|It|Its|My|No|Not|Now|On|Or|Our|She|So|"
    "That|The|Their|Then|There|These|They|This|Those|We|What|When|Where|While|Who|Why|Yes|Yet|You|Your"
)  # words that are rarely capitalized within a sentence
NO_SENTENCE_END = re.compile(
    rf"\b(?:{LEADING_ABBREVIATIONS})\.|\b(?:{OTHER_ABBREVIATIONS})\.(?!\s+(?:{SENTENCE_STARTERS})[\s,'’])"
)
SENTENCE_END = re.compile(r"(?<![.!?…。！？।])[.!?…。！？।]++[\"'”’)\]*_]*+(?:\s+|$)|[。！？।]+")


def split_words(text: str) -> list[str]:
    r"""Return the words as IFEval counts them (``\w+``).

    >>> split_words("It's a well-known fact.")
    ['It', 's', 'a', 'well', 'known', 'fact']
    """
    return WORD.findall(text)


def find_capital_words(text: str) -> list[str]:
    """Return words in capitals; a hyphenated word counts as a single word.

    >>> find_capital_words("A TOP-TEN list of NASA's")
    ['A', 'TOP-TEN']
    """
    return [word for word in HYPHENATED_WORD.findall(text) if word.isupper()]


def split_sentences(text: str) -> list[str]:
    """Split text into sentences by punctuation.

    Titles, decimal points and line breaks do not end a sentence. Other abbreviations and single capitals end a sentence
    only before a word such as ``He`` or ``The``.

    IFEval uses NLTK's trained splitter, which requires a download. Both are heuristics. They may differ if a sentence
    ends in an abbreviation or begins with a lower-case letter.

    >>> split_sentences("Dr. Who paid 3.50. Really? Yes"), split_sentences("Did he go? No. He stayed.")
    (['Dr. Who paid 3.50.', 'Really?', 'Yes'], ['Did he go?', 'No.', 'He stayed.'])
    """
    masked = NO_SENTENCE_END.sub(lambda match: match[0].replace(".", "\0"), text)
    sentences, at = [], 0
    for end in SENTENCE_END.finditer(masked):
        sentences.append(masked[at : end.end()])
        at = end.end()
    sentences.append(masked[at:])
    return [part.replace("\0", ".").strip() for part in sentences if WORD.search(part)]


def split_paragraphs(text: str) -> list[str] | None:
    """Split paragraphs at ``***``; return None if an inner paragraph is empty."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    if any(not part.strip() for part in parts[1:-1]):
        return None
    return [part for part in parts if part.strip()]


SCRIPTS = {
    "LATIN": ("en", "es", "pt", "fr", "de", "it", "pl", "vi", "sw", "fi"), "CYRILLIC": ("ru", "uk", "bg"),
    "ARABIC": ("ar", "fa", "ur"), "DEVANAGARI": ("hi", "mr", "ne"), "BENGALI": ("bn",), "TAMIL": ("ta",),
    "TELUGU": ("te",), "KANNADA": ("kn",), "GUJARATI": ("gu",), "GURMUKHI": ("pa",), "MALAYALAM": ("ml",),
    "THAI": ("th",), "HANGUL": ("ko",), "HEBREW": ("he",), "HIRAGANA": ("ja",), "KATAKANA": ("ja",), "CJK": ("zh",),
}  # fmt: skip
COMMON_WORDS = {
    "en": (
        "the of and to in is that it was for on are as with his they at be this have from or by not but what all "
        "were when we there can an your which their if do will each about how up out them then she many some so "
        "these would into has more her two like him see time could no make than been its who now people my made "
        "over did down only way find use may water very after words called just where most know it's i you a he "
        "me our"
    ),
    "es": (
        "el la de que y en un una los las del se por con para es su al lo como más pero sus le ya o este sí "
        "porque esta entre cuando muy sin sobre también hasta hay donde quien desde todo nos durante uno les ni "
        "contra otros ese eso ante ellos esto antes algunos qué unos yo otro otras él"
    ),
    "pt": (
        "o a de que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à "
        "seu sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem "
        "mesmo aos ter seus quem nas me esse eles estão você"
    ),
    "fr": (
        "le la les de des et à un une du en est que qui dans pour ce il elle au par sur ne pas plus se son sa ses "
        "avec tout nous vous mais ou où je leur été cette comme aux être sont ces deux aussi fait"
    ),
    "de": (
        "der die das und in den von zu mit sich des auf für ist im dem nicht ein eine als auch es an werden aus "
        "er hat dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber "
        "vor zur bis mehr durch man sein wurde ich wir ihr"
    ),
    "it": (
        "il lo la i gli le di che e è un una in per non con del della da si dei nel alla al sono più come anche "
        "ma se su delle questo ha o mi ci nella io lei lui noi dal ed quando suo sua molto"
    ),
    "pl": (
        "i w na z się nie do to że jest o jak a po co tak za od ale by dla czy już tym przez był może jego być "
        "tylko ze jej są kiedy ich go lub tego pod bardzo gdy także"
    ),
    "vi": (
        "là và của có không được cho trong một những các với người này đã để khi ở đó từ như ra rất cũng về tôi "
        "nó nhiều hay bị vào thì mà đến lại"
    ),
    "sw": (
        "na ya wa kwa ni za katika la kama hii hiyo yake wao watu hili lakini yangu cha au pia kuwa vya mimi sana "
        "huo wake zao hakuna kila"
    ),
    "fi": (
        "ja on ei se että oli hän mutta kun ovat tai myös niin kuin sen joka mitä minä hyvin ole vain ne tämä jos "
        "sekä ovat olla voi kaikki"
    ),
    "ru": (
        "и в не на я что он с как это а по но они к у за от его она так все вы было из же мы бы то меня ещё нет о "
        "для мне только быть очень если или есть были"
    ),
    "uk": (
        "і в не на я що він з як це а та до але вони у за від його вона так все ви було із ж ми б мене ще немає "
        "про для мені тільки бути дуже якщо або є були її"
    ),
    "bg": (
        "и в не на аз че той с като това а по но те към за от му тя така всички вие беше със же ние би още няма "
        "си са е да ще се само много ако или има бяха"
    ),
    "ar": ("في من على إلى أن هذا هذه التي الذي عن مع كان لا ما هو هي كل بعد أو قد لم بين ذلك"),
    "fa": ("در از به که این است را با برای آن یک خود تا بر هم می های شد بود ما او یا اما"),
    "ur": ("کے کی میں ہے اور سے کا کو اس نے پر کہ یہ ہیں ایک تھا بھی کر ہو جو نہیں وہ"),
    "hi": ("के है में की और से का को पर यह नहीं कि एक हैं ने था भी कर इस वह जो हो तो ही"),
    "mr": ("आहे आणि या ते होते नाही हे मध्ये का एक ला तो ती च्या त्या आहेत होता पण की तर मी"),
    "ne": ("छ र को मा यो हो एक पनि छन् गर्न थियो भने का ले हुन्छ तर यस छैन त्यो लागि"),
}
LANGUAGE_NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "de": "German", "en": "English", "es": "Spanish",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi",
    "it": "Italian", "ja": "Japanese", "kn": "Kannada", "ko": "Korean", "ml": "Malayalam", "mr": "Marathi",
    "ne": "Nepali", "pa": "Punjabi", "pl": "Polish", "pt": "Portuguese", "ru": "Russian", "sw": "Swahili",
    "ta": "Tamil", "te": "Telugu", "th": "Thai", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese",
    "zh": "Chinese",
}  # fmt: skip
WORD_SETS = {language: frozenset(words.split()) for language, words in COMMON_WORDS.items()}
MIN_SCRIPT_SHARE = 0.6  # minimum share of letters in a language's script
MIN_WORDS = 10  # minimum words of a text that must contain a common word
TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
SAMPLE_TEXTS = {
    "de": "Das ist ein kurzer Text, und er ist auf Deutsch.",
    "es": "Este es un texto corto y está en español.",
    "fr": "Ce texte est court et il est en français.",
    "it": "Questo è un testo corto ed è in italiano.",
    "pt": "Este é um texto curto e não é em inglês.",
    "ru": "Это короткий текст, и он на русском.",
    "ko": "이것은 짧은 글입니다.",
    "ja": "これは短い文章です。",
    "zh": "这是一个短文。",
    "hi": "यह एक छोटा पाठ है।",
}


def may_be_language(text: str, language: str) -> bool:
    """Return True if a text may be in a language, given by its ISO 639-1 code.

    >>> [may_be_language(text, "en") for text in ("The sea is blue.", "Das Meer ist blau.", "sea salt")]
    [True, False, True]
    """
    scripts = Counter(script for letter in text if letter.isalpha() and (script := _letter_script(letter)))
    letters = sum(scripts.values())
    if not letters:
        return True
    if language in ("ja", "zh"):
        kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
        east_asian = kana + scripts["CJK"]
        return east_asian >= MIN_SCRIPT_SHARE * letters and (kana > 0.1 * east_asian) == (language == "ja")
    script = next((name for name, languages in SCRIPTS.items() if language in languages), "")
    if scripts[script] < MIN_SCRIPT_SHARE * letters:
        return False
    if len(SCRIPTS[script]) == 1:
        return True
    words = [word.lower() for word in TOKEN.findall(text)]
    hits = {
        language_option: sum(word in WORD_SETS[language_option] for word in words)
        for language_option in SCRIPTS[script]
    }
    best = max(hits.values())
    if not best:
        return len(words) < MIN_WORDS
    return hits[language] == best


def _letter_script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0].split("-")[0]
