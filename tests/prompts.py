"""Prompts of different kinds for measuring nearness to the reference; the long ones are Python's own documentation."""

from pydoc_data.topics import topics

SHORT: dict[str, str] = {
    "english": "The lighthouse keeper climbed the stairs every evening and",
    "question": "What is the capital of Mongolia, and how many people live there?",
    "japanese": "昔々、ある村に一人の漁師が住んでいました。毎朝、彼は",
    "hindi": "भारत की सबसे लंबी नदी कौन सी है? इसका उत्तर है",
    "german": "Im Winter fahren die Kinder gern mit dem Schlitten den Berg hinunter, weil",
    "arabic": "كان الطقس جميلا في ذلك اليوم، لذلك قررنا أن",
    "code": "def merge_sorted(a: list[int], b: list[int]) -> list[int]:\n    result = []\n    i = j = 0\n",
    "json": '{"name": "sensor-7", "readings": [12.5, 13.1, 12.9], "unit": "C", "location": {"lat": ',
    "digits": "3.14159265358979323846264338327950288419716939937510582097494459",
    "word": "Hello",
    "list": "Shopping list:\n1. apples\n2. bread\n3.",
    "emoji": "🎉🎂 Happy birthday! 🥳 I hope you",
}


def documentation(characters: int) -> str:
    """English text of this length."""
    return "\n\n".join(topics[name] for name in sorted(topics))[:characters]
