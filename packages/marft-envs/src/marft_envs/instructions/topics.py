"""Topics for generated tasks, each with its own short lower-case words."""

from __future__ import annotations

from marft_envs.instructions.kinds import Topic

TOPICS = tuple(
    Topic(name, tuple(words.split()))
    for name, words in {
        "the sea": "waves salt blue fish deep storm sand ship",
        "a garden": "rose green soil bees grass plant sun bird",
        "winter": "snow cold ice white coat wind dark frost",
        "a train": "rails fast seat ticket track horn bridge steel",
        "music": "song drum tune voice dance piano loud sing",
        "the kitchen": "bread soup knife oven spoon sugar flour pan",
        "a dog": "bark tail paw fetch run fur bone walk",
        "the city": "street tower bus crowd light shop noise park",
        "a mountain": "peak rock climb trail steep hut view path",
        "school": "book pencil class chalk learn bell desk read",
        "the moon": "night round silver orbit dust glow crater tide",
        "a river": "flow stone boat mud bank swim reed cold",
    }.items()
)
FILLER_WORDS = (
    "old",
    "small",
    "far",
    "calm",
    "good",
    "kind",
    "new",
    "long",
    "full",
    "high",
    "much",
    "guy",
    "jump",
    "why",
    "hymn",
)
