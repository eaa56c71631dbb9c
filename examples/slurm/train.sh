#!/bin/bash
#SBATCH --job-name=train-lm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2         # ranks a node; on GPUs: --gres=gpu:8 in the place of this line
#SBATCH --time=30:00
#SBATCH --signal=B:XCPU@45          # 45 s before the time limit: ranks save and end
# One command in the place of `srun torchrun …`: Slurm says who the nodes are. `exec` lets its signals arrive.
# Words behind the script's name go to the program: sbatch examples/slurm/train.sh --steps 100
exec allranks run examples/train_lm.py --checkpoint-dir checkpoints "$@"
