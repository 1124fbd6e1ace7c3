"""A Hugging Face Trainer as a peer: two more lines in a script that trains with transformers.Trainer.

python examples/huggingface_trainer.py         host a run in one terminal; it prints a link
python examples/huggingface_trainer.py LINK    join it in others; the other examples with frameworks can join, too
"""

import spirals
from transformers import Trainer, TrainingArguments

from minga.integrations.transformers import join  # the first of the two lines


def main() -> None:
    peer = spirals.enter("huggingface_trainer.py")
    network = spirals.Network()
    arguments = TrainingArguments(
        per_device_train_batch_size=128,
        gradient_accumulation_steps=2,
        max_steps=100_000,  # optimizer calls of this peer: more than it will make, since training ends with the run
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(network, arguments, train_dataset=spirals.Points(), optimizers=spirals.optimizer_of(network))
    join(trainer, peer)  # the second; join(trainer, LINK) where the program does not hold the peer itself
    trainer.train()
    spirals.show(network, peer)


if __name__ == "__main__":
    main()
