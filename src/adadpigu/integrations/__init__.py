"""Other libraries' ways of training, made private: each one is imported by itself, and only by whoever asks for it."""
