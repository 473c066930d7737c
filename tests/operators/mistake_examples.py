"""An example of each known mistake, computed by hand from its description, not from its code.

Each line contains the name of a mistake, the inputs and attributes, and the outputs. If a line
omits an input or attribute, the value in the operator's line ``base`` applies. The value ``-``
means that the node omits the attribute. Fractions such as ``-2/3`` are exact.
"""

from __future__ import annotations

ADAGRAD = """
base | R=1 T=0 X=0 G=0 H=0 decay_factor=0 epsilon=0 norm_coefficient=0 |
epsilon inside the square root | G=2 epsilon=5 | X_new=-2/3
epsilon inside the square root, no decay | G=2 epsilon=5 T=1 decay_factor=1 | X_new=-2/3
epsilon inside the square root, no decay, no step where H_new is 0 \
    | X=[0,7] G=[2,0] H=[0,0] epsilon=5 T=1 decay_factor=1 | X_new=[-2/3,7]
epsilon taken as 0 | G=2 epsilon=2 | X_new=-1
epsilon added to H | G=2 epsilon=5 | X_new=-2/3 H_new=9
epsilon added to the quotient | G=2 epsilon=5 | X_new=-6
epsilon defaults to 0 | G=1/1000000 epsilon=- | X_new=-1
epsilon defaults to 1e-7 | G=1/10000000 epsilon=- | X_new=-1/2
epsilon defaults to 1e-10 | G=1/10000000000 epsilon=- | X_new=-1/2
decay_factor taken as 0 | G=1 T=1 decay_factor=1 | X_new=-1
decay in float32 | R=16777216 G=1 T=16777217 decay_factor=1 | X_new=-1
decay without T | G=1 T=3 decay_factor=1 | X_new=-1/2
decay multiplied | G=1 T=3 decay_factor=1 | X_new=-4
decay without the added one | G=1 T=4 decay_factor=1 | X_new=-1/4
decay linear | G=1 T=1 decay_factor=1/4 | X_new=-3/4
decay by powers | G=1 T=2 decay_factor=1/2 | X_new=-1/4
decay exponential | G=1 T=2 decay_factor=1/2 | X_new=-0.36787944117144233
decay by the root of T | G=1 T=3 decay_factor=1 | X_new=-1/2
decay of H | G=1 H=6 T=1 decay_factor=1 | X_new=-1/4 H_new=4
H sums magnitudes | G=-3 H=1 | X_new=3/2 H_new=4
H averages | G=4 H=2 | X_new=-4/3 H_new=9
H holds one square for the whole tensor | X=[0,0] G=[1,7] H=[0,0] | X_new=[-1/5,-7/5] H_new=[25,25]
root of H returned | G=3 | X_new=-1 H_new=3
denominator returned | G=3 epsilon=1 | X_new=-3/4 H_new=4
regularisation missing in H | X=1 G=1 norm_coefficient=1 | X_new=-1 H_new=1
regularisation missing in the step | X=1 G=1 norm_coefficient=1 | X_new=1/2 H_new=4
regularisation decoupled | R=1/2 X=4 G=1 norm_coefficient=1/2 | X_new=5/2 H_new=1
regularisation decoupled, scaled by the decayed rate \
    | X=4 G=1 T=1 decay_factor=1 norm_coefficient=1/2 | X_new=5/2 H_new=1
regularisation after the step | X=8 G=2 norm_coefficient=1/2 | X_new=7/2 H_new=4
root taken in float32 | G=1 H=16777216 | X_new=-1/4096
"""

ADAM = """
base | R=1 T=0 X=0 G=0 V=0 H=0 alpha=0 beta=0 epsilon=0 norm_coefficient=0 norm_coefficient_post=0 |
epsilon added after bias correction | G=4 T=1 beta=3/4 epsilon=4 | X_new=-1/2
epsilon added to the root of the corrected H | G=4 T=1 alpha=1/2 beta=3/4 epsilon=4 | X_new=-1/2
epsilon added after bias correction with the exponent T + 1 \
    | G=4 alpha=1/2 beta=3/4 epsilon=4 | X_new=-1/2
epsilon inside the square root | G=2 epsilon=5 | X_new=-2/3
epsilon added to H | G=2 epsilon=5 | X_new=-2/3 H_new=9
epsilon added to the quotient | G=2 epsilon=5 | X_new=-6
epsilon defaults to 0 | G=1/1000000 epsilon=- | X_new=-1
epsilon defaults to 1e-2 | G=1/100 epsilon=- | X_new=-1/2
epsilon defaults to 1e-7 | G=1/10000000 epsilon=- | X_new=-1/2
epsilon defaults to 1e-8 | G=1/100000000 epsilon=- | X_new=-1/2
defaults not rounded to float32 | H=1000 beta=- | H_new=999
bias-corrected V returned | G=4 T=1 alpha=1/2 | X_new=-1 V_new=4
bias-corrected H returned | G=4 T=1 beta=3/4 | X_new=-1 H_new=16
V summed instead of averaged | G=3 V=2 alpha=1/2 | V_new=4
H summed instead of averaged | G=3 H=4 beta=1/2 | H_new=13
alpha weighs the gradient | G=8 V=4 alpha=1/4 | V_new=5
beta weighs the gradient | G=4 H=4 beta=1/4 | H_new=7
H averages magnitudes | G=-6 H=4 beta=1/2 | H_new=5
AdaMax | G=-3 H=4 beta=1/2 | H_new=3
AMSGrad | G=2 H=16 | X_new=-1/2 H_new=4
AdaBelief | G=4 alpha=1/2 beta=1/2 | V_new=2 H_new=2
NAdam | G=4 alpha=1/2 | X_new=-3/4
RMSProp | G=4 alpha=1/2 | X_new=-1
step with the old V | G=4 V=2 | X_new=-1/2 V_new=4
regularisation missing in V | X=1 G=1 norm_coefficient=1 | X_new=1/2 V_new=1 H_new=4
regularisation missing in H | X=1 G=1 norm_coefficient=1 | X_new=-1 V_new=2 H_new=1
regularisation decoupled | R=1/2 X=4 G=1 norm_coefficient=1/2 | X_new=5/2 V_new=1 H_new=1
regularisation decoupled, scaled by the corrected rate \
    | R=1/2 X=4 G=2 T=1 alpha=1/2 norm_coefficient=1/2 | X_new=3/2 V_new=1 H_new=4
regularisation after the step | X=8 G=2 norm_coefficient=1/2 | X_new=7/2 V_new=2 H_new=4
decay before the step, scaled by R | R=1/2 X=8 G=1 norm_coefficient_post=1/2 | X_new=11/2
decay before the step, scaled by the corrected rate \
    | R=1/4 X=8 G=2 T=1 alpha=1/2 norm_coefficient_post=1/2 | X_new=23/4
decay before the step | X=8 G=1 norm_coefficient_post=1/2 | X_new=3
decay scaled by R | R=1/2 X=8 G=1 norm_coefficient_post=1/2 | X_new=45/8
decay scaled by the corrected rate \
    | R=1/4 X=8 G=2 T=1 alpha=1/2 norm_coefficient_post=1/2 | X_new=93/16
attributes combined in float32 | G=16777216 alpha=3/67108864 | V_new=16777215
no bias correction | G=4 T=1 alpha=1/2 | X_new=-1/2
bias correction of V alone | G=4 T=1 alpha=1/2 beta=3/4 | X_new=-2
bias correction of H alone | G=4 T=1 alpha=1/2 beta=3/4 | X_new=-1/2
bias correction without the root | G=4 T=1 alpha=1/2 beta=3/4 | X_new=-1/2
bias correction inverted | G=4 T=1 alpha=1/2 beta=15/16 | X_new=-4
bias correction with alpha and beta exchanged | V=4 H=8 T=1 alpha=3/4 beta=1/2 | X_new=-3/2
bias correction linear in T | V=4 H=32/3 T=2 alpha=1/4 beta=3/8 | X_new=-1/2
bias correction as in the first step | V=4 H=16/3 T=2 alpha=1/2 beta=3/4 | X_new=-1
bias correction with the exponent T + 1 | G=4 T=1 alpha=1/2 | X_new=-2/3
bias correction with the exponent T - 1 | G=4 T=2 alpha=1/2 | X_new=-1
bias correction from T = 0 with the exponent T + 1 | G=4 alpha=1/2 | X_new=-1
bias correction at every T | G=4 alpha=1/2 beta=1/2 | X_new=nan
bias correction at T != 0 | V=2 H=2 T=-1 alpha=1/2 beta=2 | X_new=0.35355339059327379
bias correction from T = 2 | G=4 T=1 alpha=1/2 | X_new=-1/2
bias correction with powers rounded to float32 \
    | V=8192 T=2 alpha=8191/8192 epsilon=1 | X_new=-33550336
root taken in float32 | G=1 H=16777217 beta=1 | X_new=-1/4096
"""

MOMENTUM = """
base | R=1 T=0 X=0 G=0 V=0 alpha=0 beta=1 mode=standard norm_coefficient=0 |
first step ignores V | G=2 V=5 alpha=1 | X_new=-2 V_new=2
gradient dampened by 1 - alpha | G=4 T=1 alpha=1/4 | V_new=3
gradient dampened by 1 - beta | G=4 T=1 beta=1/4 | V_new=3
beta taken as 1 | G=4 T=1 beta=1/2 | V_new=4
beta taken as 1 for Nesterov | G=4 T=1 beta=1/2 mode=nesterov | X_new=-4 V_new=4
beta at every T | G=4 T=-1 beta=1/2 | V_new=2
beta from T = 2 | G=4 T=1 beta=1/2 | V_new=4
beta at T >= 0 | G=4 beta=1/2 | V_new=2
beta at T != 0 | G=4 T=-1 beta=1/2 | V_new=2
beta at T <= 0 only | G=4 T=1 beta=1/2 | V_new=4
beta weighs V | G=4 V=8 T=1 alpha=1/2 beta=1/4 | V_new=4
beta weighs the sum | G=4 V=8 T=1 alpha=1/2 beta=1/4 | V_new=2
beta to the power of T | G=4 T=2 beta=1/2 | V_new=1
alpha at T > 0 only | G=4 V=8 alpha=1/2 beta=1/4 | V_new=9
velocity holds the step | R=1/2 X=1 G=4 V=8 T=1 alpha=1/2 beta=1/2 | X_new=4 V_new=3
velocity holds the step, beta taken as 1 \
    | R=1/2 X=1 G=4 V=8 T=1 alpha=1/2 beta=1/2 | X_new=3 V_new=2
learning rate inside V | R=1/2 X=10 G=4 V=8 T=1 alpha=1/2 beta=1/2 | X_new=5 V_new=5
V averaged | G=4 V=8 T=1 alpha=1/4 beta=1/2 | V_new=5
step with the old V | V=8 alpha=1/2 | X_new=-8 V_new=4
step by the sign of V | G=4 | X_new=-1 V_new=4
Nesterov with the old V | G=2 V=8 alpha=1/2 mode=nesterov | X_new=-6 V_new=6
Nesterov without the gradient | G=2 V=8 alpha=1/2 mode=nesterov | X_new=-3 V_new=6
Nesterov without alpha | G=2 V=8 alpha=1/2 mode=nesterov | X_new=-8 V_new=6
Nesterov with beta on the gradient \
    | G=2 V=8 T=1 alpha=1/2 beta=1/2 mode=nesterov | X_new=-7/2 V_new=5
Nesterov with beta on V | G=4 V=8 T=1 alpha=1/2 beta=1/4 mode=nesterov | X_new=-21/4 V_new=5
Nesterov blending gradient and V | G=4 V=8 alpha=1/4 mode=nesterov | X_new=-9/2 V_new=6
Nesterov with the plain gradient | X=2 G=1 norm_coefficient=1 mode=nesterov | X_new=1 V_new=3
Nesterov's lookahead stored as V | G=2 V=8 alpha=1/2 mode=nesterov | X_new=-5 V_new=5
Nesterov looks ahead twice | G=2 V=8 alpha=1/2 mode=nesterov | X_new=-9/2 V_new=6
regularisation missing in V | X=2 G=1 norm_coefficient=1 | X_new=1 V_new=1
regularisation decoupled | R=1/2 X=8 G=2 norm_coefficient=1/2 | X_new=5 V_new=2
regularisation after the step | X=8 G=2 norm_coefficient=1/2 | X_new=3 V_new=2
"""

ADMM_GRADIENT = """
base | G=0 W=0 Z=0 U=0 rho=1 |
gradient of the norm not squared | G=[1,1] W=[3,4] rho=2 | G_new=[8/5,9/5]
rho halved | G=1 W=4 rho=1/2 | G_new=2
rho doubled | G=1 W=4 rho=1/2 | G_new=5
rho left out | G=1 W=4 rho=3 | G_new=5
U subtracted | W=5 Z=1 U=2 | G_new=2
U left out | W=5 Z=1 U=2 | G_new=4
U not scaled | W=5 Z=1 U=2 rho=1/2 | G_new=4
Z left out | W=5 Z=1 U=2 | G_new=7
gradient subtracted | G=1 W=4 rho=1/2 | G_new=-1
sign of the residual | G=1 W=-4 rho=1/2 | G_new=1/2
averaged over the elements | G=[1,1] W=[4,8] | G_new=[3,5]
"""

ADMM_PENALTY = """
base | loss=1 W=[3,4] Z=0 U=0 rho=2 |
norm not squared | | loss_new=6
root of the norm | W=[16] | loss_new=5
rho inside the norm | rho=8 | loss_new=11
rho without the half | | loss_new=51
magnitudes summed | W=[3,-4] | loss_new=8
mean of the squares | | loss_new=27/2
square of the sum | | loss_new=50
largest square | | loss_new=17
U subtracted | W=5 Z=1 U=2 | loss_new=5
U left out | W=5 Z=1 U=2 | loss_new=17
Z left out | W=5 Z=1 U=2 | loss_new=50
loss left out | | loss_new=25
loss multiplied by rho / 2 | loss=3 rho=4 | loss_new=56
unscaled dual variable | W=5 Z=1 U=2 | loss_new=25
squared dual variable subtracted | W=5 Z=1 U=2 | loss_new=33
"""

ADMM_UPDATE = """
base | W=[1,4] Z=[0,0] U=[1,1] percent=100 |
U with the old Z | Z=[3,3] U=[0,0] | Z_new=[0,4] U_new=[-2,1]
U moved in the other direction | | Z_new=[0,5] U_new=[0,2]
U without the old U | | Z_new=[0,5] U_new=[1,-1]
U not updated | | Z_new=[0,5] U_new=[1,1]
W projected without U | U=[5,1] | Z_new=[0,4] U_new=[6,1]
threshold and mask from W | U=[5,1] | Z_new=[0,5] U_new=[6,0]
threshold from W | U=[5,1] | Z_new=[6,5] U_new=[0,0]
weights kept instead of W + U | | Z_new=[0,4] U_new=[2,1]
U subtracted from W | U=[5,1] | Z_new=[-4,0] U_new=[10,5]
"""

MAGNITUDE_PRUNE = """
base | W=[1,2,3] percent=50 |
mask of nonzero elements | W=[0,0,0,0,2] percent=60 | W_new=[0,0,0,0,2] mask=[0,0,0,0,1]
mask of elements at or above the threshold | W=[nan,1] | W_new=[nan,1] mask=[0,0]
mask of elements above the threshold | | W_new=[0,2,3] mask=[0,0,1]
mask of pruned elements | | W_new=[0,2,3] mask=[1,0,0]
mask with signs | W=[1,-2,3] | W_new=[0,-2,3] mask=[0,-1,1]
weights not pruned | | W_new=[1,2,3] mask=[0,1,1]
"""

#: Mistakes in the regularized gradient, for all operators that regularize it.
REGULARIZED_GRADIENT = """
no regularisation | X=inf G=3 norm_coefficient=1 | G_regularized=3
regularisation of twice the strength | X=2 G=3 norm_coefficient=1 | G_regularized=7
regularisation of half the strength | X=2 G=3 norm_coefficient=1 | G_regularized=4
regularisation by the absolute values | X=-5 G=3 norm_coefficient=2 | G_regularized=1
regularisation scaled by the learning rate | R=1/2 X=2 G=3 norm_coefficient=1 | G_regularized=4
regularisation of the gradient instead of the tensor | X=5 G=3 norm_coefficient=2 | G_regularized=9
regularisation blends tensor and gradient | X=8 G=4 norm_coefficient=1/4 | G_regularized=5
regularisation by the norm instead of its square \
    | X=[3,4] G=[1,1] norm_coefficient=2 | G_regularized=[11/5,13/5]
gradient clipped by value | X=[0,0] G=[-3,1/2] | G_regularized=[-1,1/2]
gradient clipped by norm | X=[0,0] G=[3,4] | G_regularized=[3/5,4/5]
gradient centred | X=[0,0] G=[1,3] | G_regularized=[-1,1]
gradient normalised | X=[0,0] G=[3/8,1/2] | G_regularized=[3/5,4/5]
gradient averaged over the elements | X=[0,0] G=[2,4] | G_regularized=[1,2]
sign of the gradient | X=[0,0] G=[-3,5] | G_regularized=[-1,1]
"""

#: Mistakes in the denominator of Adam and Adagrad; V_new is G, and H_new is the square of G.
ROOT_AND_EPSILON = """
epsilon squared inside the square root | G=3 epsilon=4 | X_new=-3/5
epsilon inside and outside the square root | G=2 epsilon=5 | X_new=-1/4
root multiplied by 1 + epsilon | G=2 epsilon=1 | X_new=-1/2
epsilon as a lower bound of the root | X=[0,0] G=[1,4] epsilon=2 | X_new=[-1/2,-1]
epsilon as a lower bound of H_new | X=[0,0] G=[1,4] epsilon=4 | X_new=[-1/2,-1]
no square root | G=2 epsilon=4 | X_new=-1/4
step with the old H | G=1 H=4 | X_new=-1/2
one denominator for the whole tensor | X=[0,0] G=[1,7] | X_new=[-1/5,-7/5]
"""

#: Mistakes of operators that prune W.
THRESHOLDS = """
percentile of signed values | W=[-5,1,3] percent=50 | pruned=[-5,1,3]
percent taken as a fraction | W=[1,2,3,4,5] percent=50 | pruned=[0,2,3,4,5]
percent multiplied by 100 | W=[1,2,3,4,5] percent=1/2 | pruned=[0,0,3,4,5]
percent of unpruned elements | W=[1,2,3,4,5] percent=25 | pruned=[0,0,0,4,5]
percentile of the elements that are not zero | W=[0,0,1,2,3] percent=50 | pruned=[0,0,0,2,3]
percent of the largest magnitude | W=[1,2,3,8] percent=50 | pruned=[0,0,0,8]
percentile without interpolation, lower neighbour | W=[1,2,3,4] percent=50 | pruned=[0,2,3,4]
percentile without interpolation, nearest neighbour | W=[1,2,3,4] percent=40 | pruned=[0,2,3,4]
rank counted from one | W=[1,2,3,4] percent=50 | pruned=[0,2,3,4]
rank of n instead of n - 1 | W=[1,2,3,4,5] percent=50 | pruned=[0,0,0,4,5]
elements equal to the threshold pruned | W=[1,2,3] percent=50 | pruned=[0,0,3]
signed values compared | W=[-5,1,3] percent=50 | pruned=[0,0,3]
largest elements pruned | W=[1,2,3] percent=50 | pruned=[1,2,0]
exactly floor(n * percent / 100) pruned | W=[1,1,1,1,2] percent=60 | pruned=[0,0,0,1,2]
exactly ceil((n - 1) * percent / 100) pruned | W=[1,1,1,1,2] percent=60 | pruned=[0,0,0,1,2]
soft threshold | W=[1,-3,5] percent=50 | pruned=[0,0,2]
threshold in the place of zero | W=[1,-3,5] percent=50 | pruned=[3,-3,5]
magnitudes returned | W=[1,-3,5] percent=50 | pruned=[0,3,5]
"""
