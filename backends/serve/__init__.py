"""An HTTP server with OpenAI's routes over one loaded model; needs ggufc[serve]."""
