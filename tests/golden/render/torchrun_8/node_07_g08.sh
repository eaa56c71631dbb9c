#!/bin/bash
# g08: start this here, and the other nodes' scripts there, in any order
set -e
source /opt/env/bin/activate
cd '/shared/my project'
: "${WANDB_API_KEY:?set WANDB_API_KEY in this shell}"; export WANDB_API_KEY
export OMP_NUM_THREADS=4
exec python3 \
  -m torch.distributed.run \
  --nnodes=8 \
  --nproc-per-node=8 \
  --node-rank=7 \
  --rdzv-backend=static \
  --master-addr=g01 \
  --master-port=29500 \
  --max-restarts=0 \
  train.py --epochs 3 --name 'a b'
