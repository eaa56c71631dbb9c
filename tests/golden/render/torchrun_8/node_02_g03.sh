#!/bin/bash
# g03: start this here, and the other nodes' scripts there, in any order
# A command of the prelude that fails ends this script, one inside a file or function that it uses does not.
trap 'code=$? line=$LINENO
if [ ${#BASH_SOURCE[@]} = 1 ]
then
  echo "$0, line $line: a command of the prelude ended with code $code" >&2
  exit "$code"
fi' ERR
source /opt/env/bin/activate
trap - ERR
set -e
cd '/shared/my project'
export WANDB_API_KEY="${WANDB_API_KEY:?set WANDB_API_KEY in this shell}"
export OMP_NUM_THREADS=4
exec python3 \
  -m torch.distributed.run \
  --nnodes=8 \
  --nproc_per_node=8 \
  --node_rank=2 \
  --rdzv_backend=static \
  --master_addr=g01 \
  --master_port=29500 \
  --max_restarts=0 \
  train.py --epochs 3 --name 'a b'
