"""A loop with Hugging Face Accelerate as a peer: `prepare` joins the run and prepares everything.

python examples/accelerate_loop.py             host a run in one terminal; it prints a link
python examples/accelerate_loop.py LINK        join it in others; the other examples with frameworks can join, too
"""

import spirals
from accelerate import Accelerator
from torch.utils.data import DataLoader

from minga.integrations.accelerate import prepare


def main() -> None:
    peer = spirals.enter("accelerate_loop.py")
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    network = spirals.Network()
    optimizer, scheduler = spirals.optimizer_of(network)
    loader = DataLoader(spirals.Points(), batch_size=128, shuffle=True)
    # In the place of accelerator.prepare; LINK instead of peer where the program does not hold the peer itself.
    model, optimizer, loader, scheduler = prepare(accelerator, peer, network, optimizer, loader, scheduler)
    epoch = 0
    while not loader.finished:
        for batch in loader:  # ends with the run, too
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)  # only measures: the run clips
                optimizer.step()
                scheduler.step()  # does nothing: the schedule follows the global step
                optimizer.zero_grad()
        epoch += 1
        if epoch % 10 == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, run at step {peer.status().step}", flush=True)
    spirals.show(network, peer)


if __name__ == "__main__":
    main()
