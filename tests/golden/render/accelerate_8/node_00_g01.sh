#!/bin/bash
# g01: start this here, and the other nodes' scripts there, in any order
set -e
source /opt/env/bin/activate
here="$(cd "$(dirname "$0")" && pwd)"
cd '/shared/my project'
: "${WANDB_API_KEY:?set WANDB_API_KEY in this shell}"; export WANDB_API_KEY
export OMP_NUM_THREADS=4
exec python3 \
  -m accelerate.commands.launch \
  --config_file "$here/node_00_g01.yaml" \
  train.py --epochs 3 --name 'a b'
