"""Conversations: the chat templates of models, and the prompts that they make of messages.

A template is a jinja2 program in the model's file. It is rendered by a process of its own (`worker`), bounded in time
and memory, with the settings and functions of Hugging Face's `apply_chat_template`. What a user wrote never becomes a
control token, whatever it looks like: see `marks`.
"""
