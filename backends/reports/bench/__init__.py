"""Speed: of a model beside llama.cpp and the memory, of its operations one by one, and of every type of weights."""
