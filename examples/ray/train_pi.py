"""A driver for `allranks run --ray`: an actor a node samples, the driver gathers.

    allranks run --hosts hosts.txt --ray -- python train_pi.py
"""

import random

import ray


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Sampler:
    def sample(self, count: int) -> int:
        return sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(count))


def main() -> None:
    ray.init()  # RAY_ADDRESS says where
    samplers = [Sampler.remote() for _ in ray.nodes()]
    inside = total = 0
    for step in range(1, 6):
        inside += sum(ray.get([sampler.sample.remote(20_000) for sampler in samplers]))
        total += 20_000 * len(samplers)
        print(f"step {step}/5 on {len(samplers)} nodes: pi is about {4 * inside / total:.3f}", flush=True)


if __name__ == "__main__":
    main()
