"""minga: train one neural network together with people you do not know, over the internet."""
