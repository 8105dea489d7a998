// What is done to the first of two results of linear layers before it is multiplied by the second.

float vk_gate_silu(float x) {
    return x * vk_sigmoid(x);
}

float vk_gate_gelu(float x) {
    return vk_gelu(x);
}

// Hendrycks and Gimpel's approximation: sqrt(2 / pi) * (x + 0.044715 x^3) under the tanh.
float vk_gate_gelu_tanh(float x) {
    return 0.5 * x * (1.0 + vk_tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

float vk_gate_relu(float x) {
    return vk_max(x, 0.0);
}
