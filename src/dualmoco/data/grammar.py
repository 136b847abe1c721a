"""The words of the demo's grammar, each with its form in both languages."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

Phrase = tuple[str, str]


class Forms(NamedTuple):
    """The words that agree with a personal pronoun."""

    be: str
    was: str
    do: str
    object: str
    possessive: str
    mine: str
    zh: str


@dataclass(frozen=True)
class Person:
    """Someone a sentence is about, with the pronoun that stands for them."""

    en: str
    zh: str
    pronoun: str

    @property
    def forms(self) -> Forms:
        """The words that agree with this person."""
        return FORMS[self.pronoun]

    @property
    def object(self) -> str:
        """The English form after a verb or a preposition."""
        return self.forms.object if self.en == self.pronoun else self.en

    def present(self, phrase: str) -> str:
        """A verb phrase in the present tense, agreeing with this person."""
        return third_person(phrase) if self.forms.do == "does" else phrase


class Noun(NamedTuple):
    """A thing to count, with its measure word and a group that says where it is sold or found."""

    one: str
    many: str
    measure: str
    zh: str
    group: str


def _rows(table: str) -> tuple[tuple[str, ...], ...]:
    """Reads a table of "english=中文" entries parted by bars or line ends."""
    entries = (entry for entry in table.replace("\n", "|").split("|") if entry.strip())
    return tuple(tuple(field.strip() for field in entry.split("=")) for entry in entries)


def _pairs(table: str) -> tuple[Phrase, ...]:
    return tuple((english, chinese) for english, chinese in _rows(table))


FORMS: Final = {
    "I": Forms("am", "was", "do", "me", "my", "mine", "我"),
    "you": Forms("are", "were", "do", "you", "your", "yours", "你"),
    "he": Forms("is", "was", "does", "him", "his", "his", "他"),
    "she": Forms("is", "was", "does", "her", "her", "hers", "她"),
    "we": Forms("are", "were", "do", "us", "our", "ours", "我们"),
    "they": Forms("are", "were", "do", "them", "their", "theirs", "他们"),
}
PEOPLE: Final = tuple(
    Person(en, zh, pronoun)
    for pronoun, table in {
        "I": "I=我",
        "you": "you=你",
        "we": "we=我们",
        "he": """he=他 | Tom=汤姆 | David=大卫 | Peter=彼得 | Jack=杰克 | Mr. Wang=王先生 | the doctor=医生
            my father=我爸爸 | my uncle=我叔叔 | my older brother=我哥哥 | my neighbor=我邻居""",
        "she": """she=她 | Mary=玛丽 | Anna=安娜 | Lucy=露西 | Linda=琳达 | Ms. Li=李女士 | my teacher=我老师
            my mother=我妈妈 | my aunt=我阿姨 | my younger sister=我妹妹 | my colleague=我同事""",
        "they": "they=他们 | my grandparents=我爷爷奶奶 | my classmates=我的同学们 | the students=学生们",
    }.items()
    for en, zh in _pairs(table)
)
TELLABLE: Final = tuple(person for person in PEOPLE if person.pronoun != "you")
ASKABLE: Final = tuple(person for person in PEOPLE if person.pronoun not in {"I", "we"})

CITIES: Final = tuple(
    (en, zh, region)
    for region, table in {
        "China": """Beijing=北京 | Shanghai=上海 | Guangzhou=广州 | Chengdu=成都 | Xi'an=西安 | Hangzhou=杭州
            Nanjing=南京 | Wuhan=武汉 | Qingdao=青岛 | Kunming=昆明 | Xiamen=厦门 | Tianjin=天津""",
        "Europe": "Paris=巴黎 | Berlin=柏林 | Rome=罗马 | Vienna=维也纳 | Amsterdam=阿姆斯特丹",
        "America": "New York=纽约 | Boston=波士顿 | Chicago=芝加哥 | Washington=华盛顿",
        "overseas": "London=伦敦 | Tokyo=东京 | Seoul=首尔 | Singapore=新加坡 | Sydney=悉尼 | Cairo=开罗",
    }.items()
    for en, zh in _pairs(table)
)
PAST_DAYS: Final = _pairs("""yesterday=昨天 | the day before yesterday=前天 | three days ago=三天前
    last Monday=上星期一 | last Tuesday=上星期二 | last Thursday=上星期四 | last Saturday=上星期六""")
PAST_TIMES: Final = PAST_DAYS + _pairs("""last weekend=上周末 | yesterday morning=昨天上午
    yesterday afternoon=昨天下午 | yesterday evening=昨天晚上 | last Friday evening=上星期五晚上""")
FUTURE_DAYS: Final = _pairs("""tomorrow=明天 | the day after tomorrow=后天 | this Saturday=这个星期六
    next Monday=下星期一 | next Wednesday=下星期三 | next Friday=下星期五""")
FUTURE_TIMES: Final = FUTURE_DAYS + _pairs("""next weekend=下周末 | tomorrow morning=明天上午
    tomorrow afternoon=明天下午 | tomorrow evening=明天晚上 | on Sunday afternoon=星期天下午""")
HABIT_TIMES: Final = _pairs("""every day=每天 | every morning=每天早上 | every afternoon=每天下午
    every Saturday=每个星期六 | every Sunday afternoon=每个星期天下午 | every weekend=每个周末""")
TODAY_TIMES: Final = _pairs("now=现在 | today=今天 | this evening=今天晚上 | this afternoon=今天下午")
PAST_TRIPS: Final = _pairs("last week=上星期 | last month=上个月 | last year=去年 | last summer=去年夏天")
FUTURE_TRIPS: Final = _pairs("next week=下星期 | next month=下个月 | next year=明年 | next spring=明年春天")
ROUTINE_TIMES: Final = _pairs("""in the evening=晚上 | in the afternoon=下午 | on weekends=周末
    on Saturdays=星期六 | on Sundays=星期天""")
CLOCK_DAYS: Final = _pairs("""tomorrow=明天 | on Monday=星期一 | on Tuesday=星期二 | on Wednesday=星期三
    on Thursday=星期四 | on Friday=星期五 | on Saturday=星期六 | on Sunday=星期天""")
DAY_PARTS: Final = (("morning", "上午", 8, 11), ("afternoon", "下午", 1, 5), ("evening", "晚上", 6, 9))
MINUTES: Final = _pairs("{} o'clock={}点 | half past {}={}点半 | a quarter past {}={}点一刻")
NUMBERS: Final = _pairs("""zero=零 | one=一 | two=两 | three=三 | four=四 | five=五 | six=六
    seven=七 | eight=八 | nine=九 | ten=十 | eleven=十一""")

SCENES: Final = tuple(
    (phrase, phrase_zh, past_zh, place, place_zh)
    for phrase, phrase_zh, past_zh, places in _rows("""
        read a book=看书=看了一本书=home library park cafe garden | cook=做饭=做了饭=home
        read the newspaper=看报纸=看了报纸=home library cafe garden hotel | swim=游泳=游了泳=pool beach
        watch a movie=看电影=看了一部电影=home cinema hotel | play basketball=打篮球=打了篮球=park center
        watch a game=看比赛=看了一场比赛=home center cafe | take a walk=散步=散了步=park beach garden
        play table tennis=打乒乓球=打了乒乓球=gym center hotel park | fly a kite=放风筝=放了风筝=park beach
        play chess=下棋=下了棋=home park cafe center garden | play cards=打牌=打了牌=home park hotel center
        play the guitar=弹吉他=弹了吉他=home park beach garden | sing=唱歌=唱了歌=home park center
        play the piano=弹钢琴=弹了钢琴=home hotel center | drink coffee=喝咖啡=喝了咖啡=home cafe hotel garden
        drink tea=喝茶=喝了茶=home garden hotel center | take photos=拍照=拍了照=park beach garden hotel
        eat ice cream=吃冰淇淋=吃了冰淇淋=home park beach cafe | exercise=锻炼身体=锻炼了身体=home park gym
        study English=学英语=学了英语=home library cafe center | write letters=写信=写了信=home library cafe
        listen to music=听音乐=听了音乐=home park cafe garden | draw pictures=画画=画了画=home park garden""")
    for key, place, place_zh in _rows("""
        home=at home=在家里 | park=in the park=在公园里 | beach=at the beach=在海边 | gym=at the gym=在健身房
        garden=in the garden=在花园里 | library=in the library=在图书馆 | cafe=at the coffee shop=在咖啡馆
        hotel=at the hotel=在酒店 | center=at the community center=在社区中心 | cinema=at the cinema=在电影院
        pool=at the swimming pool=在游泳池""")
    if key in places.split()
)
OUTDOOR_SCENES: Final = tuple(s for s in SCENES if s[3] in {"in the park", "at the beach", "in the garden"})
INDOOR_SCENES: Final = tuple(s for s in SCENES if s[3] in {"at home", "in the library", "at the coffee shop"})
PAST_FORMS: Final = dict(
    _pairs("""read=read | drink=drank | eat=ate | swim=swam | take=took | fly=flew | write=wrote | draw=drew
    sing=sang | study=studied""")
)
STATEMENTS: Final = (
    (PAST_TIMES, "{who} {past} {place} {time}.", "{who}{time}{place}{past}。"),
    (HABIT_TIMES, "{who} {present} {place} {time}.", "{who}{time}都{place}{base}。"),
    (FUTURE_TIMES, "{who} {be} going to {base} {place} {time}.", "{who}打算{time}{place}{base}。"),
)
QUESTIONS: Final = (
    (PAST_TIMES, "did {who} {base} {place} {time}?", "{who}{time}{place}{base}了吗？"),
    (HABIT_TIMES, "{do} {who} {base} {place} {time}?", "{who}{time}都{place}{base}吗？"),
    (FUTURE_TIMES, "will {who} {base} {place} {time}?", "{who}{time}会{place}{base}吗？"),
    (FUTURE_TIMES, "where will {who} {base} {time}?", "{who}{time}会在哪里{base}？"),
)
NEGATIONS: Final = (
    (PAST_TIMES, "{who} did not {base} {place} {time}.", "{who}{time}没{place}{base}。"),
    (FUTURE_TIMES, "{who} will not {base} {place} {time}.", "{who}{time}不会{place}{base}。"),
    (PAST_TIMES, "{who} never {present} {place}.", "{who}从来不{place}{base}。"),
)
CONDITIONS: Final = (
    (
        FUTURE_DAYS,
        "if {{weather}} {time}, {who} will {base} {place}.",
        "如果{time}{{weather}}，{who}就会{place}{base}。",
    ),
)
BAD_WEATHER: Final = _pairs("it rains=下雨 | it snows=下雪 | it is too cold=天气太冷 | it is too hot=天气太热")
GOOD_WEATHER: Final = _pairs("it is sunny=是晴天 | the weather is good=天气好 | it is warm=天气暖和")
ROUTINES: Final = _rows("""take a shower=洗澡=洗完澡 | read the newspaper=看报纸=看完报纸
    clean the room=打扫房间=打扫完房间 | do the laundry=洗衣服=洗完衣服 | water the flowers=浇花=浇完花
    walk the dog=遛狗=遛完狗 | listen to the news=听新闻=听完新闻 | go running=跑步=跑完步
    practice the piano=练钢琴=练完钢琴 | check email=看邮件=看完邮件 | study English=学英语=学完英语
    wash the dishes=洗碗=洗完碗 | drink coffee=喝咖啡=喝完咖啡 | exercise=锻炼身体=锻炼完身体""")

NOUNS: Final = tuple(
    Noun(one, many, zh[0], zh[1:], group)
    for group, table in {
        "text": "book=books=本书 | magazine=magazines=本杂志",
        "desk": """notebook=notebooks=个笔记本 | pen=pens=支钢笔 | pencil=pencils=支铅笔 | ruler=rulers=把尺子
            eraser=erasers=块橡皮""",
        "wear": """shirt=shirts=件衬衫 | sweater=sweaters=件毛衣 | coat=coats=件大衣 | jacket=jackets=件夹克
            hat=hats=顶帽子 | scarf=scarves=条围巾""",
        "pair": "pair of shoes=pairs of shoes=双鞋 | pair of gloves=pairs of gloves=双手套",
        "home": """umbrella=umbrellas=把雨伞 | bag=bags=个包 | cup=cups=个杯子 | lamp=lamps=盏台灯
            chair=chairs=把椅子""",
        "costly": """watch=watches=块手表 | camera=cameras=台相机 | phone=phones=部手机
            guitar=guitars=把吉他 | bicycle=bicycles=辆自行车""",
        "food": """apple=apples=个苹果 | orange=oranges=个橙子 | egg=eggs=个鸡蛋 | lemon=lemons=个柠檬
            bottle of milk=bottles of milk=瓶牛奶 | bottle of orange juice=bottles of orange juice=瓶橙汁""",
        "animal": """cat=cats=只猫 | dog=dogs=只狗 | bird=birds=只鸟 | rabbit=rabbits=只兔子
            horse=horses=匹马 | cow=cows=头牛 | sheep=sheep=只羊 | duck=ducks=只鸭子""",
    }.items()
    for one, many, zh in _rows(table)
)
MOST: Final = {"text": 6, "desk": 6, "wear": 3, "pair": 3, "home": 4, "costly": 1, "food": 9, "animal": 9}
BOOKSTORE, MALL, SUPERMARKET = _pairs("at the bookstore=在书店 | at the mall=在商场 | at the supermarket=在超市")
SALES: Final = {
    "text": (BOOKSTORE, _pairs("twenty=二十 | thirty=三十 | forty-five=四十五 | fifty=五十")),
    "desk": (BOOKSTORE, _pairs("two=两 | three=三 | five=五 | eight=八")),
    "wear": (
        MALL,
        _pairs("ninety=九十 | one hundred and twenty=一百二十 | two hundred=两百 | three hundred=三百"),
    ),
    "pair": (MALL, _pairs("eighty=八十 | one hundred and fifty=一百五十 | two hundred and forty=两百四十")),
    "home": (MALL, _pairs("thirty=三十 | forty=四十 | sixty=六十 | seventy-five=七十五 | one hundred=一百")),
    "costly": (MALL, _pairs("six hundred=六百 | nine hundred=九百 | one thousand=一千 | two thousand=两千")),
    "food": (SUPERMARKET, _pairs("two=两 | three=三 | four=四 | five=五")),
}
GOODS: Final = tuple(noun for noun in NOUNS if noun.group in SALES)
OWNED: Final = tuple(noun for noun in NOUNS if noun.group in {"text", "wear", "home", "costly"})
SPOTS: Final = {
    ("text", "desk"): _pairs("on the desk=书桌上 | in the drawer=抽屉里 | in the bag=包里 | in the box=盒子里"),
    ("wear", "pair"): _pairs("in the closet=衣柜里 | in the suitcase=行李箱里"),
    ("food",): _pairs("in the refrigerator=冰箱里 | on the kitchen table=餐桌上 | in the basket=篮子里"),
    ("animal",): _pairs("in the yard=院子里 | on the farm=农场里 | by the river=河边 | behind the house=房子后面"),
}
COLOR_WORDS: Final = _pairs("red=红色的 | blue=蓝色的 | white=白色的 | black=黑色的 | green=绿色的 | orange=橙色的")
QUALITIES: Final = _pairs("interesting=有意思的 | useful=有用的 | new=新 | English=英文 | Chinese=中文")
COMPARATIVES: Final = {
    "text": _pairs("more interesting=有意思 | thicker=厚"),
    "wear": _pairs("more beautiful=漂亮 | bigger=大"),
    "home": _pairs("bigger=大 | smaller=小"),
    "costly": _pairs("lighter=轻 | heavier=重"),
    "any": _pairs("newer=新 | older=旧 | cheaper=便宜 | more expensive=贵"),
}
DEGREES: Final = (("", ""), ("much ", "得多"), ("a little ", "一点儿"))
MEALS: Final = (
    _pairs("""apples=吃苹果 | bananas=吃香蕉 | oranges=吃橙子 | grapes=吃葡萄 | strawberries=吃草莓
        pears=吃梨 | peaches=吃桃子 | watermelon=吃西瓜 | ice cream=吃冰淇淋
        cake=吃蛋糕 | chocolate=吃巧克力"""),
    _pairs("""noodles=吃面条 | dumplings=吃饺子 | rice=吃米饭 | bread=吃面包 | fish=吃鱼 | beef=吃牛肉
        eggs=吃鸡蛋 | chicken=吃鸡肉 | tofu=吃豆腐 | potatoes=吃土豆 | pizza=吃披萨
        hamburgers=吃汉堡 | salad=吃沙拉"""),
    _pairs("""tea=喝茶 | coffee=喝咖啡 | milk=喝牛奶 | orange juice=喝橙汁 | apple juice=喝苹果汁
        cola=喝可乐 | hot chocolate=喝热巧克力"""),
)
SKIES: Final = _pairs("""sunny and hot=是晴天，很热 | sunny and warm=是晴天，很暖和
    cloudy and cool=是阴天，很凉快 | sunny but cold=是晴天，但是很冷 | cloudy and cold=是阴天，很冷
    cloudy but warm=是阴天，但是很暖和
    windy and cool=有大风，很凉快 | windy and cold=有大风，很冷 | rainy and cold=有雨，很冷""")
CLIMATES: Final = _pairs("colder=冷 | hotter=热 | warmer=暖和 | cooler=凉快")
VEHICLES: Final = _pairs("by train=坐火车 | by car=开车 | by bus=坐大巴 | by plane=坐飞机")
PURPOSES: Final = _pairs("to see a friend=看朋友 | to visit a museum=参观博物馆 | for a vacation=度假")
REASONS: Final = {
    ("{he} {was} too tired", "太累了"): """went to bed early=很早就睡了 | took a taxi home=坐出租车回家了
        did not cook=没做饭 | drank two cups of coffee=喝了两杯咖啡 | went home early=很早就回家了""",
    ("{he} {was} sick", "生病了"): """did not go to the party=没去参加聚会 | went to the hospital=去了医院
        stayed in bed all day=在床上躺了一整天 | did not eat anything=什么都没吃""",
    ("{he} missed the bus", "没赶上公共汽车"): """walked home=走路回家了 | came home late=很晚才回家
        took a taxi home=坐出租车回家了 | called a friend=给朋友打了电话""",
    (
        "{he} {was} very hungry",
        "很饿",
    ): """ate two bowls of noodles=吃了两碗面条 | bought some bread=买了一些面包
        ordered a big pizza=点了一个大披萨 | went to a restaurant=去了一家餐馆""",
    ("the weather was very good", "天气很好"): """went hiking=去爬山了 | went to the beach=去了海边
        walked to the park=走路去了公园 | washed the car=洗了车""",
    ("it was raining", "下雨"): """did not go out=没出门 | took an umbrella=带了一把雨伞
        did not go running=没去跑步 | stayed at home all day=在家里待了一整天""",
}
CAUSES: Final = tuple((*cause, *row) for cause, results in REASONS.items() for row in _pairs(results))
MEETING_PLACES: Final = _pairs("""at the train station=在火车站 | at the airport=在机场 | at the hotel=在酒店
    at the library=在图书馆 | at the bus stop=在公共汽车站 | in front of the museum=在博物馆门口
    at the coffee shop=在咖啡馆 | in the park=在公园里 | in front of the bank=在银行门口""")


def third_person(phrase: str) -> str:
    """A verb phrase as it follows he, she or it."""
    verb, _, rest = phrase.partition(" ")
    if verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "ie"
    elif verb.endswith(("ch", "sh", "o")):
        verb += "e"
    return f"{verb}s {rest}".rstrip()


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
