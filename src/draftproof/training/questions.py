"""How user turns may begin, by what users ask for: the target goes on from there and so writes its own questions.

An instruct model given an empty user turn writes what it was trained to answer (Magpie, 2406.08464), mostly the same
few kinds of question; a few first words keep the kinds in balance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OPENERS: Mapping[str, Sequence[str]] = {
    "free": ("",),
    "writing": (
        "Write a short story about", "Write a blog post about", "Draft an email to", "Describe", "Write a poem about",
        "Compose a letter", "Write a persuasive", "Write a review of", "Edit the following paragraph",
    ),
    "roleplay": (
        "Pretend you are", "You are a", "Imagine you are", "Act as", "Embrace the role of", "Picture yourself",
    ),
    "reasoning": (
        "If", "Imagine you are participating", "Which of the following", "A man", "David has", "Why do", "Suppose",
        "Can you explain why",
    ),
    "math": (
        "Solve for x:", "A store sells", "What is the area of", "If a train", "Tom has", "A recipe calls for",
        "Calculate", "How many", "Find the sum of", "Janet", "The total cost", "James buys",
    ),
    "coding": (
        "Write a Python function that", "Write a function to find", "Implement", "How do I", "Write a C++ program",
        "Explain what this code does:\n```python\n", "Fix the bug in this code:\n```python\n", "Write an SQL query",
        "Develop a Python program", "Write a simple website in HTML",
    ),
    "extraction": (
        "Extract", "Given the following data", "Identify the named entities in", "From the text below, list",
        "Evaluate the following reviews on a scale of 1 to 5", "Count how many times",
    ),
    "stem": (
        "Explain the concept of", "What is the", "How does", "Describe the process of", "What are the main",
        "What causes", "In the field of physics",
    ),
    "humanities": (
        "Discuss", "What were the causes of", "Compare", "How did", "Explain the importance of", "Who was",
        "Provide insights into", "What is the meaning of",
    ),
    "translation": (
        "Translate German to English:", "Translate to French:", "Translate the following sentence to Spanish:",
        "Translate German to English: Die", "Translate German to English: Der", "Translate German to English: In",
    ),
    "summary": (
        "Summarize:", "Summarize the following article:", "Give a short summary of this text:", "Summarize: The",
        "Summarize: A", "TL;DR of the following:",
    ),
    "questions": (
        "who", "when did", "where is", "what is the name of", "how many", "who plays", "what does", "when was",
        "who sings", "which",
    ),
    "lookup": (
        "Use the following passages to answer the question:\n", "Answer the question based on the context below.\n",
        "Read the passage and answer:\n", "Based on the following text, ",
    ),
}  # fmt: skip
