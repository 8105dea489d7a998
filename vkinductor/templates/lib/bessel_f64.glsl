// The Bessel functions of bessel.glsl for doubles: the same formulas, fits of higher degree.

// J0 and Y0 for x >= 8: the modulus times the cosine and sine of x - pi/4 plus the phase.
void vk_bessel_0_far_f64(double x, out double j, out double y) {
    double v = 8.0lf / x;
    double q = v * v;
    double m = -6.15727018170315610e-11lf;
    m = m * q + 5.34145911075940748e-10lf;
    m = m * q - 2.16022454517744729e-09lf;
    m = m * q + 5.46288595132016609e-09lf;
    m = m * q - 9.85433748496207829e-09lf;
    m = m * q + 1.39181319931761074e-08lf;
    m = m * q - 1.69195989349191994e-08lf;
    m = m * q + 1.99052878612696792e-08lf;
    m = m * q - 2.60369341750876516e-08lf;
    m = m * q + 4.31103020216170788e-08lf;
    m = m * q - 9.95357335991556734e-08lf;
    m = m * q + 3.48608784152582324e-07lf;
    m = m * q - 2.07079569923066391e-06lf;
    m = m * q + 2.52723693835184503e-05lf;
    m = m * q - 9.76562499999986447e-04lf;
    m = m * q + 1.00000000000000000e+00lf;
    double p = 7.31056264993973333e-11lf;
    p = p * q - 6.30189707312616359e-10lf;
    p = p * q + 2.52646063276578684e-09lf;
    p = p * q - 6.30909489479658984e-09lf;
    p = p * q + 1.11667735623714570e-08lf;
    p = p * q - 1.53076333454568514e-08lf;
    p = p * q + 1.77338179172882221e-08lf;
    p = p * q - 1.93326666314001811e-08lf;
    p = p * q + 2.26194469978090293e-08lf;
    p = p * q - 3.23413820992992085e-08lf;
    p = p * q + 6.23436520155125354e-08lf;
    p = p * q - 1.74902227666276662e-07lf;
    p = p * q + 7.81090623673673995e-07lf;
    p = p * q - 6.39557838284132728e-06lf;
    p = p * q + 1.27156575520816402e-04lf;
    p = p * q - 1.56250000000000000e-02lf;
    int quadrant;
    double r = vk_trig_reduce_f64(x, quadrant);
    precise double angle = r + (p * v - 7.85398163397448310e-01lf);
    double s = vk_sin_f64(angle);
    double c = vk_cos_f64(angle);
    double scale = m * sqrt(6.36619772367581343e-01lf / x);
    j = scale * ((quadrant & 1) == 0 ? c : s);
    y = scale * ((quadrant & 1) == 0 ? s : c);
    j = ((quadrant + 1) & 2) == 0 ? j : -j;
    y = (quadrant & 2) == 0 ? y : -y;
}

// J0(x) for 0 <= x < 8
double vk_bessel_j0_near_f64(double x) {
    if (x < 4.0lf) {
        double s = x * x;
        double u = s * 0.125lf - 1.0lf;
        double p = 1.66222436610010507e-23lf;
        p = p * u - 2.11794302215253667e-21lf;
        p = p * u + 2.36289030764370656e-19lf;
        p = p * u - 2.29424316143423327e-17lf;
        p = p * u + 1.91801130128668336e-15lf;
        p = p * u - 1.36386163462487467e-13lf;
        p = p * u + 8.13083177639963626e-12lf;
        p = p * u - 3.99433006957623868e-10lf;
        p = p * u + 1.58322843730155523e-08lf;
        p = p * u - 4.93179901117935717e-07lf;
        p = p * u + 1.16718785037322833e-05lf;
        p = p * u - 2.00603565099228306e-04lf;
        p = p * u + 2.34967517613256715e-03lf;
        p = p * u - 1.70301070533264536e-02lf;
        p = p * u + 6.46600828149179740e-02lf;
        p = p * u - 8.86624191227773223e-02lf;
        precise double gap = (x - 2.40482555769577289e+00lf) - -1.17670797032415864e-16lf;
        return p * gap * (x + 2.40482555769577289e+00lf);
    }
    double u = 0.5lf * x - 3.0lf;
    double p = 1.32440410645405764e-15lf;
    p = p * u + 3.22180015203860818e-14lf;
    p = p * u - 1.65891809921608484e-13lf;
    p = p * u - 3.32600781910226629e-12lf;
    p = p * u + 1.55014007969333077e-11lf;
    p = p * u + 2.65699895066186361e-10lf;
    p = p * u - 1.16112341913793651e-09lf;
    p = p * u - 1.66719545424305628e-08lf;
    p = p * u + 6.80828722508512960e-08lf;
    p = p * u + 7.94829702113842242e-07lf;
    p = p * u - 3.01794964021924433e-06lf;
    p = p * u - 2.74937786900528842e-05lf;
    p = p * u + 9.64692648352546793e-05lf;
    p = p * u + 6.45930645534574001e-04lf;
    p = p * u - 2.07742833502486124e-03lf;
    p = p * u - 9.29255864945808044e-03lf;
    p = p * u + 2.70514630744312749e-02lf;
    p = p * u + 6.77199639598449893e-02lf;
    p = p * u - 1.73720139738054558e-01lf;
    p = p * u - 1.55073184733384550e-01lf;
    p = p * u + 3.13895366058148606e-01lf;
    precise double gap = (x - 5.52007811028631057e+00lf) - 8.08893673486541974e-17lf;
    return p * gap;
}

double vk_bessel_j0_f64(double x) {
    double ax = vk_abs_f64(x);
    if (!vk_isfinite_f64(x)) {
        return VK_NAN_F64;
    }
    double j;
    if (ax < 8.0lf) {
        j = vk_bessel_j0_near_f64(ax);
    } else {
        double y;
        vk_bessel_0_far_f64(ax, j, y);
    }
    return j;
}

double vk_bessel_y0_f64(double x) {
    if (x == 0.0lf) {
        return -VK_INF_F64;
    }
    if (!(x > 0.0lf) || vk_isinf_f64(x)) {
        return VK_NAN_F64;
    }
    if (x < 4.0lf) {
        double u = x * x * 0.125lf - 1.0lf;
        double p = -2.95621422996214329e-22lf;
        p = p * u + 3.68780542880249448e-20lf;
        p = p * u - 4.03160698865234589e-18lf;
        p = p * u + 3.82823273222684181e-16lf;
        p = p * u - 3.12243676758912474e-14lf;
        p = p * u + 2.15987841554550390e-12lf;
        p = p * u - 1.24806373776328625e-10lf;
        p = p * u + 5.91543783187660361e-09lf;
        p = p * u - 2.24856251681566698e-07lf;
        p = p * u + 6.66216647062761251e-06lf;
        p = p * u - 1.48214199912019692e-04lf;
        p = p * u + 2.35170496178237686e-03lf;
        p = p * u - 2.46601154659065458e-02lf;
        p = p * u + 1.50396489940007871e-01lf;
        p = p * u - 4.03697108264228943e-01lf;
        p = p * u + 5.09276882055950258e-02lf;
        p = p * u + 5.58383918993903605e-01lf;
        return p + 6.36619772367581343e-01lf * (vk_log_f64(x) * vk_bessel_j0_near_f64(x));
    }
    if (x < 8.0lf) {
        double u = 0.5lf * x - 3.0lf;
        double p = 5.26827272267970637e-12lf;
        p = p * u - 1.56299454723712720e-11lf;
        p = p * u + 1.93043919901661209e-11lf;
        p = p * u - 6.45381266762746105e-11lf;
        p = p * u + 3.44422283915971101e-10lf;
        p = p * u - 1.14335729957922608e-09lf;
        p = p * u - 1.71224252970282686e-09lf;
        p = p * u + 8.74142090455988490e-09lf;
        p = p * u + 2.70691932401996825e-07lf;
        p = p * u - 9.71400447115022373e-07lf;
        p = p * u - 9.71244823994039518e-06lf;
        p = p * u + 3.24371909801542387e-05lf;
        p = p * u + 2.92657354717999535e-04lf;
        p = p * u - 8.87624991662594649e-04lf;
        p = p * u - 5.45294655061151403e-03lf;
        p = p * u + 1.47573423902257351e-02lf;
        p = p * u + 5.98068176844132188e-02lf;
        p = p * u - 1.40468718223854344e-01lf;
        p = p * u - 2.84426659633445489e-01lf;
        p = p * u + 5.18052586529692438e-01lf;
        p = p * u + 3.50020688600796492e-01lf;
        p = p * u - 2.88194683981579158e-01lf;
        return p;
    }
    double j;
    double y;
    vk_bessel_0_far_f64(x, j, y);
    return y;
}

// J1 and Y1 for x >= 8: the modulus times the cosine and sine of x - 3 pi/4 plus the phase.
void vk_bessel_1_far_f64(double x, out double j, out double y) {
    double v = 8.0lf / x;
    double q = v * v;
    double m = 6.85168254173060748e-11lf;
    m = m * q - 5.94788094664440498e-10lf;
    m = m * q + 2.40780542556765267e-09lf;
    m = m * q - 6.09781043165593919e-09lf;
    m = m * q + 1.10247790402982130e-08lf;
    m = m * q - 1.56300535485107024e-08lf;
    m = m * q + 1.91233321576872519e-08lf;
    m = m * q - 2.27446909640753345e-08lf;
    m = m * q + 3.02767973979630763e-08lf;
    m = m * q - 5.14714937039323687e-08lf;
    m = m * q + 1.23632652449815670e-07lf;
    m = m * q - 4.61336240448159302e-07lf;
    m = m * q + 3.07196746216273102e-06lf;
    m = m * q - 4.72068786607306696e-05lf;
    m = m * q + 2.92968749999998482e-03lf;
    m = m * q + 1.00000000000000000e+00lf;
    double p = -8.12853652276876329e-11lf;
    p = p * q + 7.01177366028283936e-10lf;
    p = p * q - 2.81372117080138015e-09lf;
    p = p * q + 7.03618976491320308e-09lf;
    p = p * q - 1.24802725499709411e-08lf;
    p = p * q + 1.71673915526011644e-08lf;
    p = p * q - 2.00044503428754128e-08lf;
    p = p * q + 2.20243381279338160e-08lf;
    p = p * q - 2.61854631483570345e-08lf;
    p = p * q + 3.83678581914877434e-08lf;
    p = p * q - 7.67247808704652169e-08lf;
    p = p * q + 2.28165450141504685e-07lf;
    p = p * q - 1.12981687189373566e-06lf;
    p = p * q + 1.13189220411237947e-05lf;
    p = p * q - 3.20434570312481298e-04lf;
    p = p * q + 4.68750000000000000e-02lf;
    int quadrant;
    double r = vk_trig_reduce_f64(x, quadrant);
    precise double angle = r + (p * v - 7.85398163397448310e-01lf);
    quadrant -= 1;  // order 1 lags by a quarter turn more
    double s = vk_sin_f64(angle);
    double c = vk_cos_f64(angle);
    double scale = m * sqrt(6.36619772367581343e-01lf / x);
    j = scale * ((quadrant & 1) == 0 ? c : s);
    y = scale * ((quadrant & 1) == 0 ? s : c);
    j = ((quadrant + 1) & 2) == 0 ? j : -j;
    y = (quadrant & 2) == 0 ? y : -y;
}

// J1(x) for 0 <= x < 8
double vk_bessel_j1_near_f64(double x) {
    if (x < 4.0lf) {
        double s = x * x;
        double u = s * 0.125lf - 1.0lf;
        double p = 4.88942075559151032e-25lf;
        p = p * u - 6.61232997865991736e-23lf;
        p = p * u + 7.86804101933522828e-21lf;
        p = p * u - 8.18385639054100429e-19lf;
        p = p * u + 7.36665542964517649e-17lf;
        p = p * u - 5.67343202066181486e-15lf;
        p = p * u + 3.68861654428022824e-13lf;
        p = p * u - 1.99245069847550595e-11lf;
        p = p * u + 8.77012991871614667e-10lf;
        p = p * u - 3.07106796888036753e-08lf;
        p = p * u + 8.29736325332073047e-07lf;
        p = p * u - 1.66097920108535714e-05lf;
        p = p * u + 2.32838316033957327e-04lf;
        p = p * u - 2.09961022724564766e-03lf;
        p = p * u + 1.05305642171094511e-02lf;
        p = p * u - 2.11748900164724536e-02lf;
        precise double gap = (x - 3.83170597020751247e+00lf) - -1.52696276787188837e-16lf;
        return x * p * gap * (x + 3.83170597020751247e+00lf);
    }
    double u = 0.5lf * x - 3.0lf;
    double p = 2.98272923127424780e-15lf;
    p = p * u - 1.25527771832771847e-14lf;
    p = p * u - 3.46339050209567575e-13lf;
    p = p * u + 1.32723875391758897e-12lf;
    p = p * u + 3.09967836438616340e-11lf;
    p = p * u - 1.09238736745513855e-10lf;
    p = p * u - 2.21086307186457158e-09lf;
    p = p * u + 7.10758240479094565e-09lf;
    p = p * u + 1.22263259627429889e-07lf;
    p = p * u - 3.54450184276627970e-07lf;
    p = p * u - 5.04698904694252447e-06lf;
    p = p * u + 1.29868911467511683e-05lf;
    p = p * u + 1.47684500454748691e-04lf;
    p = p * u - 3.29430037753721016e-04lf;
    p = p * u - 2.84360038338660019e-03lf;
    p = p * u + 5.28454440271133863e-03lf;
    p = p * u + 3.20566373725303111e-02lf;
    p = p * u - 4.57758830045966875e-02lf;
    p = p * u - 1.71667205487144980e-01lf;
    p = p * u + 1.49033527032246482e-01lf;
    p = p * u + 2.72437465310368776e-01lf;
    precise double gap = (x - 7.01558666981561885e+00lf) - -9.41387065155804131e-17lf;
    return p * gap;
}

double vk_bessel_j1_f64(double x) {
    double ax = vk_abs_f64(x);
    if (!vk_isfinite_f64(x)) {
        return VK_NAN_F64;
    }
    double j;
    if (ax < 8.0lf) {
        j = vk_bessel_j1_near_f64(ax);
    } else {
        double y;
        vk_bessel_1_far_f64(ax, j, y);
    }
    return x < 0.0lf ? -j : j;
}

double vk_bessel_y1_f64(double x) {
    if (x == 0.0lf) {
        return -VK_INF_F64;
    }
    if (!(x > 0.0lf) || vk_isinf_f64(x)) {
        return VK_NAN_F64;
    }
    if (x < 4.0lf) {
        double u = x * x * 0.125lf - 1.0lf;
        double p = -8.82731096394580524e-24lf;
        p = p * u + 1.17182427283181564e-21lf;
        p = p * u - 1.36903567855969323e-19lf;
        p = p * u + 1.39592160748553321e-17lf;
        p = p * u - 1.22946035751688833e-15lf;
        p = p * u + 9.24413910174874344e-14lf;
        p = p * u - 5.85194615577518290e-12lf;
        p = p * u + 3.06776026351745960e-10lf;
        p = p * u - 1.30516426111471523e-08lf;
        p = p * u + 4.39445728938965558e-07lf;
        p = p * u - 1.13373494216286910e-05lf;
        p = p * u + 2.14656310434776653e-04lf;
        p = p * u - 2.80631703491007484e-03lf;
        p = p * u + 2.30663397879998511e-02lf;
        p = p * u - 1.00776391471235280e-01lf;
        p = p * u + 1.51667945835488926e-01lf;
        p = p * u + 8.24863499533448064e-02lf;
        return x * p + 6.36619772367581343e-01lf * (vk_log_f64(x) * vk_bessel_j1_near_f64(x) - 1.0lf / x);
    }
    if (x < 8.0lf) {
        double u = 0.5lf * x - 3.0lf;
        double p = 1.96580581249586661e-11lf;
        p = p * u - 5.54635048482744306e-11lf;
        p = p * u + 5.78637148914123434e-11lf;
        p = p * u - 1.82695962522905981e-10lf;
        p = p * u + 7.91593123621536303e-10lf;
        p = p * u - 2.92898833640200410e-09lf;
        p = p * u + 8.89498203006221719e-09lf;
        p = p * u + 1.28433711595569334e-08lf;
        p = p * u - 6.10059155766734174e-08lf;
        p = p * u - 1.75949859759080436e-06lf;
        p = p * u + 5.82831805375348484e-06lf;
        p = p * u + 5.34184657466923142e-05lf;
        p = p * u - 1.62185930596088002e-04lf;
        p = p * u - 1.31695809633755991e-03lf;
        p = p * u + 3.55049996247173809e-03lf;
        p = p * u + 1.90853129271554948e-02lf;
        p = p * u - 4.42720271702841534e-02lf;
        p = p * u - 1.49517044211034150e-01lf;
        p = p * u + 2.80937436447691868e-01lf;
        p = p * u + 4.26639989450168233e-01lf;
        p = p * u - 5.18052586529692216e-01lf;
        p = p * u - 1.75010344300398246e-01lf;
        return p;
    }
    double j;
    double y;
    vk_bessel_1_far_f64(x, j, y);
    return y;
}

// I0(x) for 0 <= x < 7.75
double vk_i0_near_f64(double x) {
    double s = x * x;
    double p = 2.14368433255970391e-49lf;
    p = p * s + 2.28409430938303488e-46lf;
    p = p * s + 3.58001142115086150e-43lf;
    p = p * s + 4.59741398265491067e-40lf;
    p = p * s + 5.31893886493620392e-37lf;
    p = p * s + 5.44627316429411640e-34lf;
    p = p * s + 4.90166354535325967e-31lf;
    p = p * s + 3.84290347486584948e-28lf;
    p = p * s + 2.59780277311321322e-25lf;
    p = p * s + 1.49633439671094429e-22lf;
    p = p * s + 7.24225848019690404e-20lf;
    p = p * s + 2.89690339207705509e-17lf;
    p = p * s + 9.38596699032984670e-15lf;
    p = p * s + 2.40280754952443954e-12lf;
    p = p * s + 4.70950279706790135e-10lf;
    p = p * s + 6.78168402777777777e-08lf;
    p = p * s + 6.78168402777777740e-06lf;
    p = p * s + 4.34027777777777754e-04lf;
    p = p * s + 1.56250000000000000e-02lf;
    p = p * s + 2.50000000000000000e-01lf;
    p = p * s + 1.00000000000000000e+00lf;
    return p;
}

// I0(x) e^-x for x >= 7.75
double vk_i0e_far_f64(double x) {
    double v = 1.0lf / x;
    double p = 5.59162338114226196e+11lf;
    p = p * v - 5.56237348604381348e+11lf;
    p = p * v + 2.41111800782634369e+11lf;
    p = p * v - 5.89979115379230194e+10lf;
    p = p * v + 8.69807669252378654e+09lf;
    p = p * v - 7.18811213572564244e+08lf;
    p = p * v + 1.31999039855605643e+07lf;
    p = p * v + 4.38261621491510514e+06lf;
    p = p * v - 6.10230458117101924e+05lf;
    p = p * v + 4.42757246495462459e+04lf;
    p = p * v - 2.09574272535226419e+03lf;
    p = p * v + 6.91145456285710225e+01lf;
    p = p * v - 1.31483804352001132e+00lf;
    p = p * v + 1.14189965156703627e-01lf;
    p = p * v + 4.45085094979654969e-02lf;
    p = p * v + 2.92207941111107504e-02lf;
    p = p * v + 2.80506247795515862e-02lf;
    p = p * v + 4.98677850554528346e-02lf;
    p = p * v + 3.98942280401431593e-01lf;
    return p / sqrt(x);
}

double vk_i0e_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x)) {
        return x;
    }
    double y = ax < 7.75lf ? vk_i0_near_f64(ax) * vk_exp_f64(-ax) : vk_i0e_far_f64(ax);
    return y;
}

double vk_i0_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x)) {
        return x;
    }
    double y;
    if (ax < 7.75lf) {
        y = vk_i0_near_f64(ax);
    } else {
        // In two factors: I0 is finite for a while after e^x is not.
        double e = vk_exp_f64(0.5lf * ax);
        // In this order: e * e would be infinite.
        precise double part = e * vk_i0e_far_f64(ax);
        precise double whole = part * e;
        y = vk_isinf_f64(e) ? e : whole;
    }
    return y;
}

// K0(x) e^x for x >= 2
double vk_k0e_far_f64(double x) {
    double u = 4.0lf / x - 1.0lf;
    double p = 4.94960129162920129e-11lf;
    p = p * u - 6.91889321186106814e-11lf;
    p = p * u - 1.87709018732104634e-10lf;
    p = p * u + 2.21859893728413263e-10lf;
    p = p * u + 4.67585096465529129e-10lf;
    p = p * u - 5.55312252123428997e-10lf;
    p = p * u - 3.62181342395759700e-10lf;
    p = p * u + 1.80586303638356668e-10lf;
    p = p * u + 1.17173766244497906e-09lf;
    p = p * u - 1.93247443098230276e-09lf;
    p = p * u + 3.09838634692984074e-09lf;
    p = p * u - 7.28549185408395364e-09lf;
    p = p * u + 1.73466703762467847e-08lf;
    p = p * u - 4.13395687236592893e-08lf;
    p = p * u + 1.02871361520604284e-07lf;
    p = p * u - 2.68906542316815621e-07lf;
    p = p * u + 7.42794705913950102e-07lf;
    p = p * u - 2.19117780021951348e-06lf;
    p = p * u + 7.00224413341294588e-06lf;
    p = p * u - 2.47352045604751156e-05lf;
    p = p * u + 9.95605475013152828e-05lf;
    p = p * u - 4.79769056766267367e-04lf;
    p = p * u + 3.03289181027362100e-03lf;
    p = p * u - 3.10714618248895159e-02lf;
    p = p * u + 1.21859533851339052e+00lf;
    return p / sqrt(x);
}

// K0(x) for 0 < x < 2
double vk_k0_near_f64(double x) {
    double s = x * x;
    double p = 4.89710770362441372e-22lf;
    p = p * s + 2.20302893652557158e-19lf;
    p = p * s + 8.53122124546755489e-17lf;
    p = p * s + 2.65978417806447285e-14lf;
    p = p * s + 6.50869785146245926e-12lf;
    p = p * s + 1.20842616498634688e-09lf;
    p = p * s + 1.62710561048183657e-07lf;
    p = p * s + 1.49147192992604113e-05lf;
    p = p * s + 8.46035090708223024e-04lf;
    p = p * s + 2.52489299321626941e-02lf;
    p = p * s + 2.78982878914603105e-01lf;
    p = p * s + 1.15931515658412448e-01lf;
    return p - vk_log_f64(x) * vk_i0_near_f64(x);
}

double vk_k0_f64(double x) {
    if (!(x > 0.0lf)) {
        return x == 0.0lf ? VK_INF_F64 : VK_NAN_F64;
    }
    return x < 2.0lf ? vk_k0_near_f64(x) : vk_exp_f64(-x) * vk_k0e_far_f64(x);
}

double vk_k0e_f64(double x) {
    if (!(x > 0.0lf)) {
        return x == 0.0lf ? VK_INF_F64 : VK_NAN_F64;
    }
    return x < 2.0lf ? vk_exp_f64(x) * vk_k0_near_f64(x) : vk_k0e_far_f64(x);
}

// I1(x) for 0 <= x < 7.75
double vk_i1_near_f64(double x) {
    double s = x * x;
    double p = 5.05277966668147053e-51lf;
    p = p * s + 5.73964218289914967e-48lf;
    p = p * s + 9.41329367084916217e-45lf;
    p = p * s + 1.27718572603022641e-41lf;
    p = p * s + 1.56437976499963308e-38lf;
    p = p * s + 1.70196149298113187e-35lf;
    p = p * s + 1.63388778021982343e-32lf;
    p = p * s + 1.37246552989264431e-29lf;
    p = p * s + 9.99154912623017060e-27lf;
    p = p * s + 6.23472665299362050e-24lf;
    p = p * s + 3.29193567281609837e-21lf;
    p = p * s + 1.44845169603853860e-18lf;
    p = p * s + 5.21442610573880307e-16lf;
    p = p * s + 1.50175471845277472e-13lf;
    p = p * s + 3.36393056933421488e-11lf;
    p = p * s + 5.65140335648148120e-09lf;
    p = p * s + 6.78168402777777804e-07lf;
    p = p * s + 5.42534722222222192e-05lf;
    p = p * s + 2.60416666666666652e-03lf;
    p = p * s + 6.25000000000000000e-02lf;
    p = p * s + 5.00000000000000000e-01lf;
    return x * p;
}

// I1(x) e^-x for x >= 7.75
double vk_i1e_far_f64(double x) {
    double v = 1.0lf / x;
    double p = -6.01744739501840698e+11lf;
    p = p * v + 6.03381289047148315e+11lf;
    p = p * v - 2.64479124262901642e+11lf;
    p = p * v + 6.58386609690663605e+10lf;
    p = p * v - 1.00132263348997173e+10lf;
    p = p * v + 8.93565109428347349e+08lf;
    p = p * v - 2.96334955182074457e+07lf;
    p = p * v - 3.28605319950493518e+06lf;
    p = p * v + 5.59515877236468717e+05lf;
    p = p * v - 4.27809547306134409e+04lf;
    p = p * v + 2.07616387665484217e+03lf;
    p = p * v - 6.96525683372885283e+01lf;
    p = p * v + 1.30035242116982630e+00lf;
    p = p * v - 1.34948007985626839e-01lf;
    p = p * v - 5.72840278854387167e-02lf;
    p = p * v - 4.09086132155826177e-02lf;
    p = p * v - 4.67510439683034712e-02lf;
    p = p * v - 1.49603355156095547e-01lf;
    p = p * v + 3.98942280401433813e-01lf;
    return p / sqrt(x);
}

double vk_i1e_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x)) {
        return x;
    }
    double y = ax < 7.75lf ? vk_i1_near_f64(ax) * vk_exp_f64(-ax) : vk_i1e_far_f64(ax);
    return x < 0.0lf ? -y : y;
}

double vk_i1_f64(double x) {
    double ax = vk_abs_f64(x);
    if (vk_isnan_f64(x)) {
        return x;
    }
    double y;
    if (ax < 7.75lf) {
        y = vk_i1_near_f64(ax);
    } else {
        // In two factors: I1 is finite for a while after e^x is not.
        double e = vk_exp_f64(0.5lf * ax);
        // In this order: e * e would be infinite.
        precise double part = e * vk_i1e_far_f64(ax);
        precise double whole = part * e;
        y = vk_isinf_f64(e) ? e : whole;
    }
    return x < 0.0lf ? -y : y;
}

// K1(x) e^x for x >= 2
double vk_k1e_far_f64(double x) {
    double u = 4.0lf / x - 1.0lf;
    double p = -5.55892325620463573e-11lf;
    p = p * u + 7.50533302403558336e-11lf;
    p = p * u + 2.14230769828291663e-10lf;
    p = p * u - 2.38816443985177077e-10lf;
    p = p * u - 5.36921017633785583e-10lf;
    p = p * u + 6.01439976813227192e-10lf;
    p = p * u + 4.29553820279976844e-10lf;
    p = p * u - 1.75812348848452670e-10lf;
    p = p * u - 1.34608238820121745e-09lf;
    p = p * u + 2.17218474320251232e-09lf;
    p = p * u - 3.53437573845753480e-09lf;
    p = p * u + 8.41148757599260136e-09lf;
    p = p * u - 2.01536172833489983e-08lf;
    p = p * u + 4.84611476329196116e-08lf;
    p = p * u - 1.21938665759841672e-07lf;
    p = p * u + 3.22981389835579004e-07lf;
    p = p * u - 9.06725148063471668e-07lf;
    p = p * u + 2.73004140373907104e-06lf;
    p = p * u - 8.96120568826737034e-06lf;
    p = p * u + 3.28438655607592332e-05lf;
    p = p * u - 1.39590219653792100e-04lf;
    p = p * u + 7.35724154908052306e-04lf;
    p = p * u - 5.56672988007267649e-03lf;
    p = p * u + 1.03349737753865231e-01lf;
    p = p * u + 1.36315189037134199e+00lf;
    return p / sqrt(x);
}

// K1(x) for 0 < x < 2
double vk_k1_near_f64(double x) {
    double s = x * x;
    double p = -2.06069479125937900e-23lf;
    p = p * s - 1.01648333932374927e-20lf;
    p = p * s - 4.33801856718392734e-18lf;
    p = p * s - 1.50662699469234971e-15lf;
    p = p * s - 4.16179582405688557e-13lf;
    p = p * s - 8.87189621921058086e-11lf;
    p = p * s - 1.40301637003877010e-08lf;
    p = p * s - 1.55928877020382002e-06lf;
    p = p * s - 1.12536070366305659e-04lf;
    p = p * s - 4.64218276647156061e-03lf;
    p = p * s - 8.53707197286507763e-02lf;
    p = p * s - 3.07965757829206210e-01lf;
    return (1.0lf / x + x * p) + vk_log_f64(x) * vk_i1_near_f64(x);
}

double vk_k1_f64(double x) {
    if (!(x > 0.0lf)) {
        return x == 0.0lf ? VK_INF_F64 : VK_NAN_F64;
    }
    return x < 2.0lf ? vk_k1_near_f64(x) : vk_exp_f64(-x) * vk_k1e_far_f64(x);
}

double vk_k1e_f64(double x) {
    if (!(x > 0.0lf)) {
        return x == 0.0lf ? VK_INF_F64 : VK_NAN_F64;
    }
    return x < 2.0lf ? vk_exp_f64(x) * vk_k1_near_f64(x) : vk_k1e_far_f64(x);
}

// sin(x) / x
double vk_spherical_bessel_j0_f64(double x) {
    return vk_isinf_f64(x) ? 0.0lf : x == 0.0lf ? 1.0lf : vk_sin_f64(x) / x;
}
