"""Second writings of the smoothing methods, one repeat at a time in plain NumPy, for comparison number by number."""

import math

import numpy as np
import torch


class Stream:
    """Fixed standard normal numbers, played to an optimizer (as its sampler) and to its second writing alike."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, n):
        return torch.from_numpy(self.rng.standard_normal(n))

    def rows(self, n, d):
        return self.rng.standard_normal((n, d))


def gs_poweropt(fitness, mu, stream, *, K, T, lr, std, weight, schedule):
    """`weight(fitness values, fitness at mu)`; returns the path after each update."""
    path = []
    for k in range(T):
        z = stream.rows(K, len(mu))
        x = mu + std * z
        g = np.zeros(len(mu))
        for j in range(K):
            g += (x[j] - mu) * weight(fitness(x[j]), fitness(mu)) / K
        mu = mu + lr * schedule(k) * g / math.sqrt(sum(g**2))
        path.append(mu)
    return np.array(path)


def std_homotopy(fitness, mu, stream, *, K, T, lr, sigma, decay, s, level_steps, patience, levels, baseline):
    """Stops growing where the search ends."""
    path, ends, total = [], [], 0
    while total < T:
        seen = []
        while True:
            z = stream.rows(K, len(mu))
            here = fitness(mu)
            worth = np.array([fitness(mu + sigma * row) for row in z]) - (here if baseline else 0)
            g = (sigma * z * worth[:, None]).mean(0)
            mu = mu + lr * s / (s + total) * g / np.linalg.norm(g)
            seen.append(here)
            path.append(mu)
            total += 1
            stuck = len(seen) > patience + 1 and max(seen[-(patience - 1) :]) <= seen[-patience]
            if stuck or len(seen) >= level_steps or total >= T:
                break
        ends.append(seen[-1])
        sigma *= decay
        if len(ends) >= levels and max(ends[-(levels - 1) :]) <= ends[-levels]:
            break
    return np.array(path)


def slgh(fitness, x, stream, *, K, T, lr, sigma, gamma, eta, floor):
    """Maximizes; `eta` None is the fixed rate."""
    path, d = [], len(x)
    for _ in range(T):
        u = stream.rows(K if eta is None else 2 * K, d)
        v, u = u[K:], u[:K]
        here, start = fitness(x), x
        x = x + lr * np.mean([(fitness(start + sigma * row) - here) * row for row in u], axis=0) / sigma
        if eta is None:
            sigma = gamma * sigma
        else:
            slope = np.mean([(row @ row - d) * (fitness(start + sigma * row) - here) for row in v]) / sigma**2
            sigma = max(min(sigma + eta * slope, gamma * sigma), floor)
        path.append(x)
    return np.array(path)


def steps(make, start, T, batched, stream):
    """The path of an optimizer of this kind that draws from a stream."""
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = make([x], sampler=stream)
    path = []
    for _ in range(T):
        optimizer.step(batched=batched)
        path.append(x.detach().clone().numpy())
    return np.array(path)
