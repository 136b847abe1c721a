"""Gives the demo its corpus: a small English-Chinese grammar of everyday sentences.

A pattern draws words from `words.py` and writes the same sentence twice. A word has one form in the other language
and a pattern one order of words, so every sentence has exactly one translation to be retrieved.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from dualmoco.data.demo.words import (
    ASKABLE,
    BAD_WEATHER,
    CAUSES,
    CITIES,
    CLIMATES,
    CLOCK_DAYS,
    COLOR_WORDS,
    COMPARATIVES,
    CONDITIONS,
    DAY_PARTS,
    DEGREES,
    FUTURE_DAYS,
    FUTURE_TIMES,
    FUTURE_TRIPS,
    GOOD_WEATHER,
    GOODS,
    INDOOR_SCENES,
    MEALS,
    MEETING_PLACES,
    MINUTES,
    MOST,
    NEGATIONS,
    NOUNS,
    NUMBERS,
    OUTDOOR_SCENES,
    OWNED,
    PAST_DAYS,
    PAST_FORMS,
    PAST_TIMES,
    PAST_TRIPS,
    PEOPLE,
    PURPOSES,
    QUALITIES,
    QUESTIONS,
    ROUTINE_TIMES,
    ROUTINES,
    SALES,
    SCENES,
    SKIES,
    SPOTS,
    STATEMENTS,
    TELLABLE,
    TODAY_TIMES,
    VEHICLES,
    Noun,
    Person,
    Phrase,
)

MAX_PAIRS: Final = 200_000
"""The most pairs one call gives; the patterns hold more, but the small ones then run dry."""


def _past(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    return f"{PAST_FORMS.get(verb, verb.removesuffix('e') + 'ed')} {rest}".rstrip()


def _gerund(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    return f"{verb.removesuffix('e')}ing {rest}".rstrip()


def _article(phrase: str) -> str:
    vowel_sound = phrase[0] in "aeiouE" and not phrase.startswith("use")
    return f"{'an' if vowel_sound else 'a'} {phrase}"


def _counted(noun: Noun, count: int) -> Phrase:
    """A number of things, such as ("two books", "两本书")."""
    number, number_zh = NUMBERS[count]
    return _article(noun.one) if count == 1 else f"{number} {noun.many}", number_zh + noun.measure + noun.zh


def _two_people(rng: random.Random, firsts: Sequence[Person] = TELLABLE) -> tuple[Person, Person]:
    """Two people who are surely not the same: neither "I ... us" nor "Tom ... him"."""
    while True:
        first, second = rng.choice(firsts), rng.choice(PEOPLE)
        both_speakers = {first.pronoun, second.pronoun} <= {"I", "we"}
        vague = second.en in {"he", "she", "they"} and first.pronoun not in {"I", "you"}
        if first != second and not both_speakers and not vague:
            return first, second


def _scene(
    rng: random.Random,
    people: Sequence[Person],
    templates: Sequence[tuple[Sequence[Phrase], str, str]],
    scenes: Sequence[tuple[str, str, str, str, str]] = SCENES,
) -> Phrase:
    """Someone does something somewhere at some time, in the words of one of the templates."""
    who, (phrase, phrase_zh, past_zh, place, place_zh) = rng.choice(people), rng.choice(scenes)
    times, english, chinese = rng.choice(templates)
    time, time_zh = rng.choice(times)
    verbs = {"base": phrase, "past": _past(phrase), "present": who.present(phrase)}
    return (
        english.format(who=who.en, be=who.forms.be, do=who.forms.do, place=place, time=time, **verbs),
        chinese.format(who=who.zh, place=place_zh, time=time_zh, base=phrase_zh, past=past_zh),
    )


def _statement(rng: random.Random) -> Phrase:
    """Tom read a book in the library yesterday."""
    return _scene(rng, TELLABLE, STATEMENTS)


def _question(rng: random.Random) -> Phrase:
    """Did Tom read a book in the library yesterday?"""
    return _scene(rng, ASKABLE, QUESTIONS)


def _negation(rng: random.Random) -> Phrase:
    """Tom did not swim at the beach yesterday."""
    return _scene(rng, TELLABLE, NEGATIONS)


def _condition(rng: random.Random) -> Phrase:
    """If it rains tomorrow, Tom will play chess at home."""
    weathers, scenes = rng.choice(((BAD_WEATHER, INDOOR_SCENES), (GOOD_WEATHER, OUTDOOR_SCENES)))
    weather, weather_zh = rng.choice(weathers)
    english, chinese = _scene(rng, TELLABLE, CONDITIONS, scenes)
    return english.format(weather=weather), chinese.format(weather=weather_zh)


def _taste(rng: random.Random) -> Phrase:
    """Mary likes tea, but she does not like coffee."""
    (one, one_zh), (other, other_zh) = rng.sample(rng.choice(MEALS), 2)
    if rng.random() < 0.5:
        who, (time, time_zh) = rng.choice(ASKABLE), rng.choice(TODAY_TIMES)
        return (
            f"would {who.en} like {one} or {other} {time}?",
            f"{who.zh}{time_zh}想{one_zh}还是{other_zh[1:]}？",
        )
    who = rng.choice(TELLABLE)
    english = f"{who.en} {who.present('like')} {one}, but {who.pronoun} {who.forms.do} not like {other}."
    return english, f"{who.zh}喜欢{one_zh}，但是不喜欢{other_zh}。"


def _purchase(rng: random.Random) -> Phrase:
    """Mary bought two books at the bookstore for thirty yuan each yesterday."""
    noun = rng.choice(GOODS)
    count, ((shop, shop_zh), prices) = rng.randint(1, MOST[noun.group]), SALES[noun.group]
    (things, things_zh), (price, price_zh) = _counted(noun, count), rng.choice(prices)
    if rng.random() < 0.3:
        who, the_things = rng.choice(ASKABLE), noun.one if count == 1 else things
        asked_zh = f"{who.zh}买那{things_zh.removeprefix('一')}花了多少钱？"
        return f"how much did {who.en} pay for the {the_things}?", asked_zh
    who, (time, time_zh) = rng.choice(TELLABLE), rng.choice(PAST_TIMES)
    each, each_zh = ("", "花了") if count == 1 else (" each", f"每{noun.measure}")
    english = f"{who.en} bought {things} {shop} for {price} yuan{each} {time}."
    return english, f"{who.zh}{time_zh}{shop_zh}买了{things_zh}，{each_zh}{price_zh}块钱。"


def _weather(rng: random.Random) -> Phrase:
    """It will be colder in Paris than in Rome tomorrow."""
    be, days, will_zh = rng.choice((("was", PAST_DAYS, ""), ("will be", FUTURE_DAYS, "会")))
    (day, day_zh), ((city, city_zh, _), (other, other_zh, _)) = rng.choice(days), rng.sample(CITIES, 2)
    if rng.random() < 0.4:
        sky, sky_zh = rng.choice(SKIES)
        return f"it {be} {sky} in {city} {day}.", f"{day_zh}{city_zh}{sky_zh.replace('很', will_zh + '很')}。"
    climate, climate_zh = rng.choice(CLIMATES)
    english = f"it {be} {climate} in {city} than in {other} {day}."
    return english, f"{day_zh}{city_zh}{will_zh}比{other_zh}{climate_zh}。"


def _travel(rng: random.Random) -> Phrase:
    """Tom went from Beijing to Shanghai by train last week to see a friend."""
    who, (purpose, purpose_zh) = rng.choice(TELLABLE), rng.choice(PURPOSES)
    (start, start_zh, region), (end, end_zh, end_region) = rng.sample(CITIES, 2)
    by_land = region == end_region != "overseas"
    vehicle, vehicle_zh = rng.choice(VEHICLES if by_land else VEHICLES[-1:])
    go, times, will_zh, le = rng.choice((("went", PAST_TRIPS, "", "了"), ("will go", FUTURE_TRIPS, "会", "")))
    time, time_zh = rng.choice(times)
    english = f"{who.en} {go} from {start} to {end} {vehicle} {time} {purpose}."
    return english, f"{who.zh}{time_zh}{will_zh}{vehicle_zh}从{start_zh}去{end_zh}{purpose_zh}{le}。"


def _comparison(rng: random.Random) -> Phrase:
    """My camera is much cheaper than Tom's."""
    first, second = _two_people(rng, PEOPLE)
    while {first.pronoun, second.pronoun} & {"we", "they"}:
        first, second = _two_people(rng, PEOPLE)
    noun, (degree, degree_zh) = rng.choice(OWNED), rng.choice(DEGREES)
    more, more_zh = rng.choice(COMPARATIVES[noun.group] + COMPARATIVES["any"])
    owner = first.forms.possessive if first.en == first.pronoun else f"{first.en}'s"
    other = second.forms.mine if second.en == second.pronoun else f"{second.en}'s"
    english = f"{owner} {noun.one} is {degree}{more} than {other}."
    return english, f"{first.zh}的{noun.zh}比{second.zh}的{more_zh}{degree_zh}。"


def _wish(rng: random.Random) -> Phrase:
    """Tom wants to buy a red scarf for Mary."""
    (who, friend), noun = _two_people(rng), rng.choice(OWNED)
    quality, quality_zh = rng.choice(QUALITIES if noun.group == "text" else COLOR_WORDS)
    thing = _article(f"{quality} {noun.one}")
    english = f"{who.en} {who.present('want')} to buy {thing} for {friend.object}."
    return english, f"{who.zh}想给{friend.zh}买一{noun.measure}{quality_zh}{noun.zh}。"


def _existence(rng: random.Random) -> Phrase:
    """There are three books and a pen on the desk."""
    groups, spots = rng.choice(tuple(SPOTS.items()))
    spot, spot_zh = rng.choice(spots)
    noun, other = rng.sample([noun for noun in NOUNS if noun.group in groups], 2)
    count, other_count = rng.randint(1, MOST[noun.group]), rng.randint(1, MOST[other.group])
    (things, things_zh), (others, others_zh) = _counted(noun, count), _counted(other, other_count)
    be = "is" if count == 1 else "are"
    return f"there {be} {things} and {others} {spot}.", f"{spot_zh}有{things_zh}和{others_zh}。"


def _reason(rng: random.Random) -> Phrase:
    """Tom went to bed early yesterday because he was too tired."""
    who, (time, time_zh) = rng.choice(TELLABLE), rng.choice(PAST_DAYS)
    cause, cause_zh, result, result_zh = rng.choice(CAUSES)
    english = f"{who.en} {result} {time} because {cause.format(he=who.pronoun, was=who.forms.was)}."
    if "{he}" in cause:
        return english, f"因为{who.zh}{time_zh}{cause_zh}，所以{who.forms.zh}{result_zh}。"
    return english, f"因为{time_zh}{cause_zh}，所以{who.zh}{result_zh}。"


def _sequence(rng: random.Random) -> Phrase:
    """In the evening, Tom usually walks the dog before reading the newspaper."""
    who, (time, time_zh), (one, other) = (
        rng.choice(TELLABLE),
        rng.choice(ROUTINE_TIMES),
        rng.sample(ROUTINES, 2),
    )
    order, order_zh = rng.choice((("before", f"{other[1]}之前"), ("after", f"{other[2]}之后")))
    english = f"{time}, {who.en} usually {who.present(one[0])} {order} {_gerund(other[0])}."
    return english, f"{time_zh}，{who.zh}通常在{order_zh}{one[1]}。"


def _request(rng: random.Random) -> Phrase:
    """Please bring Tom two books tomorrow."""
    friend, (time, time_zh), noun = rng.choice(TELLABLE), rng.choice(FUTURE_TIMES), rng.choice(GOODS)
    verb, verb_zh = rng.choice((("bring", "带"), ("buy", "买")))
    things, things_zh = _counted(noun, rng.randint(1, MOST[noun.group]))
    wish, wish_zh = f"{verb} {friend.object} {things} {time}", f"给{friend.zh}{verb_zh}{things_zh}"
    if rng.random() < 0.5:
        return f"please {wish}.", f"请{time_zh}{wish_zh}。"
    return f"could you {wish}?", f"你{time_zh}能{wish_zh}吗？"


def _arrangement(rng: random.Random) -> Phrase:
    """Let's meet Tom at the airport at half past three tomorrow afternoon."""
    (day, day_zh), (part, part_zh, earliest, latest) = rng.choice(CLOCK_DAYS), rng.choice(DAY_PARTS)
    (hour, hour_zh), (clock, clock_zh) = NUMBERS[rng.randint(earliest, latest)], rng.choice(MINUTES)
    time, time_zh = f"at {clock.format(hour)} {day} {part}", f"{day_zh}{part_zh}{clock_zh.format(hour_zh)}"
    who, friend = _two_people(rng)
    if rng.random() < 0.6 and friend.pronoun not in {"I", "you", "we"}:
        place, place_zh = rng.choice(MEETING_PLACES)
        return f"let's meet {friend.object} {place} {time}.", f"我们{time_zh}{place_zh}和{friend.zh}见面吧。"
    return f"{who.en} will call {friend.object} {time}.", f"{who.zh}{time_zh}会给{friend.zh}打电话。"


PATTERNS: Final[tuple[Callable[[random.Random], Phrase], ...]] = (
    *(_statement, _question, _negation, _condition, _taste, _purchase, _weather, _travel),
    *(_comparison, _wish, _existence, _reason, _sequence, _request, _arrangement),
)


def generate_pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Draws distinct English-Chinese sentence pairs from the grammar.

    Args:
        count: How many pairs to draw, from 1 to MAX_PAIRS.
        seed: Seed of the draw; the same seed gives the same pairs in the same order.

    Returns:
        Pairs (English, Chinese) in which no English and no Chinese sentence comes twice.

    Raises:
        ValueError: If count is below 1 or above MAX_PAIRS.
    """
    if not 1 <= count <= MAX_PAIRS:
        raise ValueError(f"count is {count}, expected 1 to {MAX_PAIRS} sentence pairs")
    rng = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    while len(pairs) < count:
        english, chinese = rng.choice(PATTERNS)(rng)
        english = english[0].upper() + english[1:]
        if english not in seen and chinese not in seen:
            seen.update((english, chinese))
            pairs.append((english, chinese))
    return pairs
