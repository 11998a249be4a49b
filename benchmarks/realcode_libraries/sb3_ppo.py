"""Stable-Baselines3: PPO balances a pole."""

import gymnasium as gym
from stable_baselines3 import PPO


def main():
    environment = gym.make("CartPole-v1")
    model = PPO("MlpPolicy", environment, n_steps=256, batch_size=64, seed=0, device="cpu")
    model.learn(total_timesteps=1024)
    print(f"{model.num_timesteps} steps")


if __name__ == "__main__":
    main()
