"""Built-in prompts of our own writing, three for each of nine tasks: from much to copy (edit) to nothing (story)."""

from __future__ import annotations

_CODE = (
    "Write a Python class Stack with the methods push, pop, peek, size and is_empty. "
    "Add a one-line docstring to each method."
)

_EDIT = """\
Correct the spelling mistakes in this text and write the corrected text again in full.

The library on Mill Street opens at seven in the morning. On Saturdays the libary opens an hour later, and on \
Sundays it stays closed. Children under twelve may visit the library with a parent. The library was bilt in 1904 \
by two sisters, Clara and Edith Moss, who lived above it for thirty years. Today the library belongs to the town, \
and everyone who works in the libary lives within walking distance."""

_SUMMARY = """\
Summarize the text below.

The harbour ferry carried 412,000 passengers last year, eleven percent more than the year before. Most of the \
growth came in the summer months, when the new electric boats ran every fifteen minutes. The electric boats are \
quieter than the old diesel boats and use a third of the energy. Repairs to the north pier closed two of the five \
stops in October and November, and passenger numbers fell by half in those weeks. The council has agreed to buy \
two more electric boats and to reopen the north pier before Easter. Ticket prices will stay the same until the end \
of the year."""

_STORY = "Tell me a bedtime story about a small owl who is afraid of the dark."

_CODE_2 = (
    "Write a Python function merge_intervals(intervals) that joins overlapping (start, end) pairs and returns them "
    "sorted. Use type hints, and show two examples as assertions."
)

_CODE_3 = '''\
Complete this Python function. Answer with the whole function.

def parse_duration(text: str) -> int:
    """Seconds in a text such as "1h 20m", "45s" or "2d 3h"; raises ValueError where it is no duration."""
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
'''

_JSON = """\
Answer with JSON only: a list of objects with the keys name, species, age_years and vaccinated.

Bella is a beagle of four years and has all her shots. The cat Momo turned eleven in May; she is due for her \
vaccination next week. Two guinea pigs, Pip and Squeak, both one year old, need none and have had none. Rex, a \
shepherd dog, is seven and vaccinated."""

_JSON_2 = """\
Write a JSON document that describes a small web shop's order: an order number, a date, a customer with name, \
street, town and postcode, four items each with sku, title, quantity, unit_price and currency, a shipping method, \
and the total. JSON only, two spaces of indentation."""

_JSON_3 = """\
Turn this table into a JSON array, one object a row, keys in lower case. JSON only.

City | Country | Population | Founded
Bergen | Norway | 291940 | 1070
Ghent | Belgium | 265086 | 630
Porto | Portugal | 231800 | 868
Graz | Austria | 302749 | 1128
Lund | Sweden | 94703 | 990"""

_EDIT_2 = """\
Change the variable name `n` to `count` in this program and write the whole program again.

def report(words):
    n = {}
    for word in words:
        n[word] = n.get(word, 0) + 1
    for word in sorted(n, key=n.get, reverse=True):
        print(word, n[word])
    return n
"""

_EDIT_3 = """\
Put this letter into the past tense and write the whole letter again.

Dear Ms Okafor, we receive your order on Monday and pack it the same day. The driver collects the parcels at noon \
and brings them to the depot, where the staff weigh and label them. On Tuesday the parcels travel by train, \
because the road over the pass is closed. We are sorry that the lamp arrives a day late, and we refund the cost of \
the express delivery."""

_SUMMARY_2 = """\
Summarize this in two sentences.

For eleven years the workshop on Canal Road has repaired bicycles for nothing. It began when a retired machinist, \
Idris Vaughan, put a bench in front of his garage on Saturday mornings. Today twenty volunteers work there on \
three evenings a week. Last year they mended 2,140 bicycles, most of them children's, and gave away 160 that \
nobody came back for. Spare parts come from frames that cannot be saved. In spring the town offered the group a \
disused tram depot; the volunteers will move in June and want to add a course for apprentices."""

_SUMMARY_3 = """\
List the three main points of this report.

The trial of warm mix asphalt on the ring road ended in March after fourteen months. The mixture is laid at 120 \
degrees instead of 160, which saved about a fifth of the gas used at the plant. Crews reported less smoke and \
could open lanes to traffic an hour earlier. Ruts after one winter were 1.8 millimetres deep, against 1.7 in the \
ordinary sections next to it, a difference within the error of the instrument. The additive makes a tonne about \
two percent dearer. The road office recommends the mixture for all works within the town, and another look at the \
ruts after the third winter."""

_RETRIEVAL = """\
Answer the question from the notes. Say which note you used.

Note 1: The museum's tower is closed on Wednesdays and on days with strong wind.
Note 2: Tickets cost nine euros; members and children under six enter free.
Note 3: The last lift to the tower leaves forty minutes before the museum closes at six.
Note 4: Guide dogs are welcome everywhere; other dogs may wait in the yard.

Question: When does the last lift leave, and on which day does it never run?"""

_RETRIEVAL_2 = """\
Use only the passages to answer, and quote the sentence that gives the answer.

[A] The red kite was gone from the valley by 1890. Six pairs were brought back from the coast in 1996 and fed \
through their first two winters.
[B] By 2011 the birds nested in every parish of the valley, and feeding had long stopped. Counts in 2020 found 212 \
pairs.
[C] Farmers at first feared for their lambs. A study of 300 meals found worms, voles and carrion, and not one lamb.

Question: How many pairs were counted, in which year, and from how many pairs did they descend?"""

_RETRIEVAL_3 = """\
From the manual below, answer: what must be done before the filter is changed, and how often is it changed?

4.1 Switch the pump off and close valve B before you open the housing.
4.2 Let the pressure fall below half a bar; the needle must rest in the green field.
4.3 Unscrew the ring by hand. Never use a wrench.
4.4 Change the cartridge every three months, or at once when the needle stays in the yellow field.
4.5 Wet the new seal with clean water. Close the ring, open valve B, then start the pump."""

_MATH = """\
A baker sells rolls in bags of 6 and bags of 10. On Friday she sold 47 bags with 358 rolls in all. How many bags \
of each kind did she sell? Work step by step."""

_MATH_2 = """\
A tank holds 840 litres. One pipe fills it in 6 hours, a second one in 4 hours, and a leak empties it in 12 hours. \
All three are open from the start. After how many hours is the tank full? Show every step of the calculation."""

_MATH_3 = """\
Solve for x and check the result by putting it in: 3(2x - 5) - 4(x + 1) = 5x - 34. Write one step on each line."""

_TRANSLATION = """\
Translate into German:

The ferry leaves at half past seven. Please be at the pier twenty minutes earlier and have your tickets ready. \
Bicycles travel free of charge, but there is only room for twelve. In heavy fog the crossing is cancelled and the \
bus runs instead."""

_TRANSLATION_2 = """\
Translate into French:

My grandmother kept bees behind the house. Every August she let us taste the first honey from a wooden spoon, and \
she told us which flowers the bees had visited. She never wore gloves. She said that a calm hand is worth more \
than thick leather."""

_TRANSLATION_3 = """\
Translate into English:

El taller abre de lunes a viernes, de nueve a seis. Si su bicicleta necesita una pieza que no tenemos, la pedimos \
el mismo día y le avisamos cuando llegue. Las reparaciones pequeñas se hacen en el acto; para las grandes hace \
falta una cita."""

_CHAT = "I have a job interview on Thursday and I can't sleep before such days. What can I do tonight and tomorrow?"
_CHAT_2 = (
    "My basil dies every winter on the kitchen windowsill. What am I doing wrong, and what should I try this year?"
)
_CHAT_3 = "Two friends want to visit Lisbon for three days in March with little money. What would you tell them?"

_STORY_2 = "Describe a rainy morning at a small railway station, as the opening of a novel."
_STORY_3 = "Write a short poem about a lighthouse keeper who collects sounds, and say at the end what he hears last."

DEMO = {"code": _CODE, "edit": _EDIT, "summary": _SUMMARY, "story": _STORY}
BENCH = {
    "code": (_CODE, _CODE_2, _CODE_3),
    "json": (_JSON, _JSON_2, _JSON_3),
    "edit": (_EDIT, _EDIT_2, _EDIT_3),
    "summary": (_SUMMARY, _SUMMARY_2, _SUMMARY_3),
    "retrieval": (_RETRIEVAL, _RETRIEVAL_2, _RETRIEVAL_3),
    "math": (_MATH, _MATH_2, _MATH_3),
    "translation": (_TRANSLATION, _TRANSLATION_2, _TRANSLATION_3),
    "chat": (_CHAT, _CHAT_2, _CHAT_3),
    "story": (_STORY, _STORY_2, _STORY_3),
}
WARM_UP = "Go on counting: one, two, three, one, two, three, one, two, three, one, two, three, one,"  # drafts happen
